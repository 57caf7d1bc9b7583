"""A job's pods in the API: listed, made, and deleted."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from dataclasses import replace

from bamboo_core.api.events import EventFact, EventReason, Severity
from bamboo_core.api.spec import JobSpec
from bamboo_core.arbiter_state.events import Record
from bamboo_core.controller.reconcile import Action, CreatePod, DeletePod
from bamboo_core.controller.view import JobView
from bamboo_core.model.ids import AgentId
from bamboo_operator.kube import api
from bamboo_operator.kube.api import ApiError, Object
from bamboo_operator.kube.labels import JOB_LABEL, JOB_UID_LABEL
from bamboo_operator.kube.owners import is_agent, is_owned
from bamboo_operator.pods import manifests
from bamboo_operator.reconcile.ports import Known, Ports
from bamboo_operator.trust.seals import ANNOTATION

log = logging.getLogger(__name__)

REFUSED_PAUSE_S = 10.0
"""Pause after the API server has rejected a pod."""


class JobPods:
    """Only pods that an operator has made count."""

    def __init__(self, ports: Ports) -> None:
        self._ports, self._kube = ports, ports.kube

    async def read(self, job: JobView, known: Known) -> list[Object]:
        """Those that are there, and those whose end has not been counted yet. Deletes those that
        somebody has changed so that they cannot be used."""
        labels = f"{JOB_LABEL}={job.name}"
        found = await self._kube.list(api.pods(job.namespace), labels=labels)
        listed = list(filter(self._ports.seals.is_ours, found))
        await self._release(job.namespace, filter(self._ports.seals.is_orphan, found))
        await self._release_changed(job, known, found)
        deleted = self._ports.deleted_pods.of(job.namespace, labels, listed)
        return [*listed, *filter(self._ports.seals.is_ours, deleted)]

    async def _release_changed(self, job: JobView, known: Known, labelled: list[Object]) -> None:
        """Delete pods that the job controls and that it cannot use: their seal is not ours, or the
        label by which pods are listed has been changed. labelled: pods with that label."""
        found = {pod["metadata"]["name"]: pod for pod in labelled}
        pods = [pod for pod in labelled if not self._ports.seals.is_ours(pod)]
        pods += await self._unlabelled(job, known, found.keys())
        changed = [
            pod
            for pod in pods
            if is_owned(pod, job.uid) and "deletionTimestamp" not in pod["metadata"]
        ]
        if not changed:
            return
        awaited = dict(known.memory.awaited)
        for pod in changed:
            name, seals = pod["metadata"]["name"], self._ports.seals
            await self._kube.delete(api.pod(job.namespace, name), uid=pod["metadata"]["uid"])
            what = f"label {JOB_LABEL}" if seals.is_ours(pod) else f"annotation {ANNOTATION}"
            text = (
                f"pod {name}: its {what} is not as the operator has made it, so the operator"
                " deletes the pod; find out who changes or makes pods of the job"
            )
            known.unsent.append(
                Record(Severity.WARNING, EventReason.POD_CHANGED, text, {EventFact.AGENTS: name})
            )
            awaited.pop(AgentId(name), None)  # nobody else has deleted it
        if len(awaited) < len(known.memory.awaited):  # else a forged pod could delay others
            known.memory = replace(known.memory, awaited=awaited)
            self._wait(known)
            self._ports.again(job, REFUSED_PAUSE_S)

    async def _unlabelled(
        self, job: JobView, known: Known, labelled: Collection[str]
    ) -> list[Object]:
        """The job's pods that the list by the job's label does not show. One more request, only if
        a pod is missing; one for each that is known to be on a node."""
        found: dict[str, Object] = {}
        if not known.memory.awaited.keys() <= set(labelled):
            uid = f"{JOB_UID_LABEL}={job.uid}"
            pods = await self._kube.list(api.pods(job.namespace), labels=uid)
            found = {pod["metadata"]["name"]: pod for pod in pods}
        for name in self._ports.nodes.strays(job.uid):
            if name not in found and name not in labelled:
                pod = await self._kube.get(api.pod(job.namespace, name))
                found |= {} if pod is None else {name: pod}
        return [pod for name, pod in found.items() if name not in labelled]

    async def sweep(self, namespace: str, name: str) -> None:
        """Delete the pods of a deleted job: the garbage collector is slower, and leaves those of a
        job that was deleted without them."""
        seals = self._ports.seals
        found = await self._kube.list(api.pods(namespace), labels=f"{JOB_LABEL}={name}")
        await self._release(
            namespace,
            (
                pod
                for pod in found
                if seals.is_orphan(pod) or (seals.is_ours(pod) and is_agent(pod, name))
            ),
        )

    async def _release(self, namespace: str, pods: Iterable[Object]) -> None:
        """End these agents, whose job does not know them any more."""
        for pod in pods:
            meta = pod["metadata"]
            if "deletionTimestamp" not in meta:
                log.info("deleting a pod without a job", extra={"pod": meta["name"]})
                await self._kube.delete(api.pod(namespace, meta["name"]), uid=meta["uid"])

    async def act(
        self, job: JobView, spec: JobSpec, known: Known, actions: tuple[Action, ...]
    ) -> None:
        """Perform what the step has decided. A job that is refused gets no new pods, and one that
        has changed meanwhile, as by a suspension, gets none of the spec before."""
        await self._ports.trust.publish(job)
        makes = known.refusal is None and any(isinstance(each, CreatePod) for each in actions)
        is_changed = makes and not await self._is_as_read(job)
        if is_changed:
            self._ports.again(job, 0.0)
        for action in actions:
            match action:
                case CreatePod() if known.refusal is not None:
                    self._wait(known)
                case CreatePod() if is_changed:
                    pass
                case CreatePod():
                    if not await self._create(job, spec, known, action):
                        self._ports.again(job, REFUSED_PAUSE_S)
                        return
                case DeletePod():
                    await self._delete(job, action)
                case _:
                    path = api.job(job.namespace, job.name)
                    await self._kube.delete(path, uid=job.uid)

    async def _is_as_read(self, job: JobView) -> bool:
        """Whether the job is still the one that this reconcile has read. What follows it in the
        same moment is seen by the next one."""
        body = await self._kube.get(api.job(job.namespace, job.name))
        meta = body["metadata"] if body is not None else {}
        now = meta.get("uid"), int(meta.get("generation", 0)), "deletionTimestamp" in meta
        return now == (job.uid, job.generation, job.deleting)

    async def _create(self, job: JobView, spec: JobSpec, known: Known, action: CreatePod) -> bool:
        """False: the API server rejects the pod, so it would reject the rest, too."""
        ports = self._ports
        pod = manifests.pod(
            spec,
            job,
            action,
            operator_address=ports.operator_address,
            event_logs=ports.event_logs,
            seal=ports.seals.seal(
                namespace=job.namespace, job=job.name, job_uid=job.uid, pod=action.name
            ),
        )
        try:
            await self._kube.create(api.pods(job.namespace), pod)
            known.rejected = ""
            seat = action.slot, action.incarnation
            known.memory = known.memory.having_made(action.name, *seat)
        except ApiError as error:
            if error.is_conflict:
                return True
            if not error.is_refusal:
                raise
            known.rejected = error.message
            self._wait(known)
            log.warning("pods are rejected", extra={"job": job.name, "error": error.message})
            return False
        return True

    def _wait(self, known: Known) -> None:
        """No pods for a while."""
        until = self._ports.clock() + REFUSED_PAUSE_S
        known.memory = replace(known.memory, refused_until=until)

    async def _delete(self, job: JobView, action: DeletePod) -> None:
        if action.force:
            self._ports.on_forced()
        log.info("deleting a pod", extra={"pod": action.name, "reason": action.reason})
        grace_s = 0 if action.force else None
        await self._kube.delete(
            api.pod(job.namespace, action.name), uid=action.uid, grace_s=grace_s
        )
