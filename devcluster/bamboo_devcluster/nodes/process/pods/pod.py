"""One pod on a process node, from binding to removal.

The worker owns the pod's containers and volumes and reports its status. Its only input is the API
object, through `update` and `forget`.
"""

import asyncio
import contextlib
import shutil
from typing import Any

from bamboo_devcluster.children import launch
from bamboo_devcluster.errors import disk_full_message, is_disk_full
from bamboo_devcluster.kube import clock
from bamboo_devcluster.kube.client import STRATEGIC_PATCH, ApiError, UnreachableError
from bamboo_devcluster.nodes.process.pods import probes
from bamboo_devcluster.nodes.process.pods.container import Container, ContainerPorts, StopRequest
from bamboo_devcluster.nodes.process.pods.env import GPU, PodFacts, simulated_devices
from bamboo_devcluster.nodes.process.pods.preparation import NodePorts, PodStarts
from bamboo_devcluster.nodes.process.pods.status import (
    ContainerRecord,
    PodView,
    Running,
    Terminated,
    Waiting,
    build_status,
    pod_phase,
)
from bamboo_devcluster.nodes.process.pods.volumes import OBJECT_REFRESH_S, PodVolumes, VolumeError

Object = dict[str, Any]

_RETRY_S = 0.5
_VOLUME_RETRY_S = 1.0
_MIN_GRACE_S = 1.0
_DEFAULT_GRACE_S = 30.0
_REFUSAL = (
    "UnexpectedAdmissionError",
    "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices"
    f" {GPU}, which is unexpected",
)
"""As a kubelet whose device plugin has no healthy device, although the node still offers them."""
_MESSAGE_PATH = "/dev/termination-log"
_TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"


class PodWorker:
    """Runs one pod. has_broken_devices: of its node."""

    def __init__(
        self, pod: Object, pod_ip: str, node: NodePorts, *, has_broken_devices: bool = False
    ) -> None:
        self.pod = pod
        self.pod_ip = pod_ip
        self._node = node
        self._directory = node.directory / "pods" / pod["metadata"]["uid"]
        self._stop = StopRequest()
        self._started_at = clock.now()
        self._dirty = asyncio.Event()
        self._touched = asyncio.Event()  # by an update from outside
        self._progressed = asyncio.Event()  # by any change of a record, or a touch
        self._is_gone = False  # deleted from the API: nothing to report
        self._is_final = False
        self._is_dead = False  # the machine vanished: report nothing
        self._has_volumes = False
        self._is_refused = has_broken_devices and _is_new(pod) and _asks_for_devices(pod)
        self._verdict: tuple[str, str] | None = _REFUSAL if self._is_refused else None
        self._reported: Object = dict(pod.get("status") or {})
        self._volumes = PodVolumes(node.api, self._directory / "volumes", self.facts)
        self._starts = PodStarts(node, self._volumes, self._directory, self.facts)
        policy = pod["spec"].get("restartPolicy", "Always")
        self._main = [self._container(c, policy) for c in pod["spec"]["containers"]]
        self._init = [
            self._container(c, c.get("restartPolicy") or _init_policy(policy))
            for c in pod["spec"].get("initContainers") or []
        ]
        self.task = asyncio.create_task(self._run())

    @property
    def key(self) -> str:
        """The pod as namespace/name."""
        metadata = self.pod["metadata"]
        return f"{metadata['namespace']}/{metadata['name']}"

    @property
    def containers(self) -> list[Container]:
        """All containers, init containers first."""
        return [*self._init, *self._main]

    def facts(self) -> PodFacts:
        """Return the values to which the pod's references resolve."""
        return PodFacts(self.pod, self.pod_ip, self._node.host_ip, self._node.allocatable)

    def update(self, pod: Object) -> None:
        """Handle a changed pod object."""
        self.pod = pod
        metadata = pod["metadata"]
        if metadata.get("deletionTimestamp"):
            grace_s = metadata.get("deletionGracePeriodSeconds")
            self._stop.make(max(_MIN_GRACE_S, _DEFAULT_GRACE_S if grace_s is None else grace_s))
        self._touch()

    def forget(self, pod: Object) -> None:
        """The pod was force-deleted from the API: stop it."""
        self._is_gone = True
        grace_s = pod["metadata"].get("deletionGracePeriodSeconds")
        self._stop.make(max(_MIN_GRACE_S, self._grace_s() if grace_s is None else grace_s))
        self._touch()

    def kill(self) -> None:
        """SIGKILL all containers; the restart policy applies."""
        for container in self.containers:
            container.kill()

    def vanish(self) -> None:
        """The machine is gone: SIGKILL everything and report nothing."""
        self._is_dead = True
        self._stop.make(0)
        self.kill()
        self._touch()

    def freeze(self) -> None:
        """SIGSTOP all processes."""
        for process in self._processes():
            process.freeze()

    def thaw(self) -> None:
        """SIGCONT all processes."""
        for process in self._processes():
            process.thaw()

    def _change(self) -> None:
        self._dirty.set()
        self._progressed.set()

    def _touch(self) -> None:
        self._change()
        self._touched.set()

    def _processes(self) -> list[launch.Process]:
        return [c.process for c in self.containers if c.process]

    def _grace_s(self) -> float:
        grace_s = self.pod["spec"].get("terminationGracePeriodSeconds")
        return float(_DEFAULT_GRACE_S if grace_s is None else grace_s)

    async def _run(self) -> None:
        reporter = asyncio.create_task(self._report_always())
        keeper: asyncio.Task[None] | None = None
        try:
            if not self._is_refused and self._take_over():
                self._dirty.set()
                if await self._set_up_volumes():
                    keeper = asyncio.create_task(self._keep_volumes())
                    await self._run_containers()
            self._is_final = True
            await self._finish()
        finally:
            for task in (reporter, keeper):
                if task:
                    task.cancel()
            shutil.rmtree(self._directory, ignore_errors=True)

    def _take_over(self) -> bool:
        """Return whether there is something to run.

        If the pod ran on an earlier machine with this node's name, its containers are lost. Those
        that must not restart count as ended, as a kubelet reports it.
        """
        if (self.pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            self._keep_old_records()
            return False
        status = self.pod.get("status") or {}
        states = [s.get("state", {}) for s in status.get("containerStatuses") or []]
        if not any("running" in state or "terminated" in state for state in states):
            return True
        may_restart = self.pod["spec"].get("restartPolicy") != "Never"
        goes_on = may_restart and not self.pod["metadata"].get("deletionTimestamp")
        for container in self._main:
            container.lose(goes_on=goes_on)
        return goes_on

    def _keep_old_records(self) -> None:
        # A finished pod keeps its status; only its removal remains.
        self._reported = dict(self.pod.get("status") or {})
        self._verdict = None
        self._is_silent = True

    _is_silent = False

    async def _set_up_volumes(self) -> bool:
        """Set up the volumes, retrying until it works; return whether to continue."""
        while not self._stop.is_made:
            try:
                self._directory.mkdir(parents=True, exist_ok=True)
                await self._volumes.set_up()
            except (VolumeError, UnreachableError) as error:
                self._event("Warning", "FailedMount", str(error))
            except OSError as error:
                text = disk_full_message(self._directory) if is_disk_full(error) else str(error)
                self._event("Warning", "FailedMount", text)
            else:
                self._has_volumes = True
                return True
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.made(), _VOLUME_RETRY_S)
        return False

    async def _keep_volumes(self) -> None:
        while True:
            await asyncio.sleep(OBJECT_REFRESH_S)
            await self._node.awake()
            # If a source is unreachable, files stay as they are until the next round.
            with contextlib.suppress(VolumeError, UnreachableError, OSError):
                await self._volumes.refresh()
            if text := await asyncio.to_thread(self._volumes.excess):
                self._event("Warning", "Evicted", text)
                self._verdict = ("Evicted", text)
                self._stop.make(_MIN_GRACE_S)

    async def _run_containers(self) -> None:
        deadline_s = self.pod["spec"].get("activeDeadlineSeconds")
        timer = None
        if deadline_s is not None:
            timer = asyncio.get_running_loop().call_later(deadline_s, self._exceed_deadline)
        sidecars = await self._initialize()
        if self._init_succeeded():
            await asyncio.gather(*(container.run() for container in self._main))
        if timer:
            timer.cancel()
        if sidecars:
            self._stop.make(self._grace_s())
            await asyncio.gather(*sidecars)

    def _exceed_deadline(self) -> None:
        text = "Pod was active on the node longer than the specified deadline"
        self._verdict = ("DeadlineExceeded", text)
        self._stop.make(self._grace_s())

    async def _initialize(self) -> list["asyncio.Task[None]"]:
        """Run the init containers one after the other; return the sidecars among them."""
        sidecars = []
        for container in self._init:
            if container.record.is_sidecar:
                sidecars.append(asyncio.create_task(container.run()))
                await self._until_started(container)
                continue
            await container.run()
            if not self._has_succeeded(container):
                break
        return sidecars

    async def _until_started(self, container: Container) -> None:
        while not container.record.is_started and not self._stop.is_made:
            self._progressed.clear()
            await self._progressed.wait()

    @staticmethod
    def _has_succeeded(container: Container) -> bool:
        state = container.record.state
        return isinstance(state, Terminated) and state.exit_code == 0

    def _init_succeeded(self) -> bool:
        return all(c.record.is_sidecar or self._has_succeeded(c) for c in self._init)

    async def _finish(self) -> None:
        """Report the end; remove the pod once it is deleted."""
        self._dirty.set()
        while not (self._is_gone or self._is_dead):
            self._touched.clear()
            if self.pod["metadata"].get("deletionTimestamp"):
                await self._node.awake()
                if not (await self._report_now() and await self._remove()):
                    await asyncio.sleep(_RETRY_S)
                    continue
            await self._touched.wait()

    async def _remove(self) -> bool:
        metadata = self.pod["metadata"]
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}}
        try:
            await self._node.api.delete(self._path(), options)
        except ApiError as error:
            return error.code in (404, 409)
        except UnreachableError:
            return False
        return True

    def _path(self) -> str:
        metadata = self.pod["metadata"]
        return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"

    async def _report_always(self) -> None:
        while True:
            await self._dirty.wait()
            await self._node.awake()
            self._dirty.clear()
            if not await self._report_now():
                self._dirty.set()
                await asyncio.sleep(_RETRY_S)

    async def _report_now(self) -> bool:
        """Send the status if it changed; return False if it must be sent again."""
        if self._is_gone or self._is_dead or self._is_silent:
            return True
        status = build_status(self._view(), now=clock.now(), before=self._reported)
        if status == self._reported:
            return True
        # Otherwise the API merges these lists with an earlier machine's addresses.
        lists: Object = {
            key: [{"$patch": "replace"}, *status[key]]
            for key in ("hostIPs", "podIPs")
            if key in status
        }
        uid = self.pod["metadata"]["uid"]
        body = {"metadata": {"uid": uid}, "status": {**status, **lists}}
        try:
            await self._node.api.patch(f"{self._path()}/status", body, STRATEGIC_PATCH)
        except ApiError as error:
            if error.code in (404, 409):
                return True
            self._event("Warning", "FailedStatus", str(error))
            return False
        except UnreachableError:
            return False
        self._reported = status
        return True

    def _view(self) -> PodView:
        return PodView(
            pod=self.pod,
            init=[c.record for c in self._init],
            main=[c.record for c in self._main],
            pod_ip=self.pod_ip,
            host_ip=self._node.host_ip,
            started_at=self._started_at,
            has_volumes=self._has_volumes,
            verdict=self._verdict,
            is_final=self._is_final,
            is_refused=self._is_refused,
        )

    @property
    def phase(self) -> str:
        """The pod's phase as this node sees it."""
        return pod_phase(self._view())

    def _container(self, spec: Object, policy: str) -> Container:
        record = ContainerRecord(
            name=spec["name"], image=spec.get("image", ""),
            is_sidecar=spec.get("restartPolicy") == "Always",
        )  # fmt: skip
        if self.pod["spec"].get("initContainers") and spec in self.pod["spec"]["containers"]:
            record.state = Waiting("PodInitializing")
        ports = ContainerPorts(
            prepare=self._starts.prepare,
            changed=self._change,
            event=self._event,
            awake=self._node.awake,
            start_gate=self._node.start_gate,
            watch_over=lambda container: probes.watch_over(container, self.pod_ip, self._change),
            before_stop=self._before_stop if (spec.get("lifecycle") or {}).get("preStop") else None,
        )
        logs = self._directory / "logs" / spec["name"]
        return Container(
            spec, record, logs, self._stop, policy, ports, self._node.backoff,
            grace_s=self._grace_s(),
        )  # fmt: skip

    async def _before_stop(self, container: Container) -> None:
        await probes.run_hook(container, container.spec["lifecycle"]["preStop"], self.pod_ip)

    def _event(self, kind: str, reason: str, message: str) -> None:
        if not self._is_dead:
            self._node.events.record(self.pod, kind=kind, reason=reason, message=message)

    async def node_awake(self) -> None:
        """Return at once unless the node is frozen."""
        await self._node.awake()

    def is_running(self) -> bool:
        """Return whether any container runs."""
        return any(isinstance(c.record.state, Running) for c in self.containers)


def _is_new(pod: Object) -> bool:
    return not (pod.get("status") or {}).get("containerStatuses")


def _asks_for_devices(pod: Object) -> bool:
    containers = [*pod["spec"]["containers"], *(pod["spec"].get("initContainers") or [])]
    return any(map(simulated_devices, containers))


def _init_policy(policy: str) -> str:
    # A failed init container restarts, unless the pod's policy is Never.
    return "Never" if policy == "Never" else "OnFailure"
