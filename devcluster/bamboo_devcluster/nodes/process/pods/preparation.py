"""Prepares the start of a container: command, environment and mounts."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bamboo_devcluster.children import launch
from bamboo_devcluster.kube.client import ApiError, KubeApi, UnreachableError
from bamboo_devcluster.nodes.process.pods.container import Backoff, ImageError, Start
from bamboo_devcluster.nodes.process.pods.env import (
    ConfigError,
    PodFacts,
    container_argv,
    container_env,
    expand,
    referenced_objects,
    simulated_devices,
)
from bamboo_devcluster.nodes.process.pods.events import EventRecorder
from bamboo_devcluster.nodes.process.pods.volumes import PodVolumes
from bamboo_devcluster.spec import ImageMap

Object = dict[str, Any]

_MESSAGE_PATH = "/dev/termination-log"
_TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"


@dataclass(frozen=True)
class NodePorts:
    """The interface of a node to its pods."""

    api: KubeApi
    events: EventRecorder
    images: ImageMap
    isolation: launch.Isolation
    directory: Path
    host_ip: str
    allocatable: Mapping[str, str]
    api_env: Mapping[str, str]
    path_env: str
    awake: Callable[[], Awaitable[None]]
    # Starting a program blocks this process briefly. Hundreds at once would delay heartbeats until
    # the nodes count as lost, so the gate limits concurrent starts.
    start_gate: asyncio.Semaphore
    backoff: Backoff = field(default_factory=Backoff)


class PodStarts:
    """Prepares the starts of one pod's containers."""

    def __init__(
        self,
        node: NodePorts,
        volumes: PodVolumes,
        directory: Path,
        facts: Callable[[], PodFacts],
    ) -> None:
        self._node, self._volumes, self._directory, self._facts = node, volumes, directory, facts

    async def prepare(self, spec: Object) -> Start:
        """Return a container's command, environment and mounts."""
        name = spec.get("image", "")
        image = self._node.images.find(name)
        if not spec.get("command") and not (image and image.command):
            raise ImageError(
                f'image "{name}" is not in the image map of this node and the container has no '
                "command; add it to the file given with --images"
            )
        home = self._directory / "home" / spec["name"]
        home.mkdir(parents=True, exist_ok=True)
        facts = await self._facts_for(spec)
        pod = facts.pod
        base = {
            "PATH": self._node.path_env,
            "HOME": str(home),
            "HOSTNAME": pod["spec"].get("hostname") or pod["metadata"]["name"],
            **(image.env if image else {}),
            **self._node.api_env,
            **simulated_devices(spec),
        }
        env = container_env(spec, facts, base)
        message_file = home.parent / f"{spec['name']}.termination-log"
        message_file.write_bytes(b"")
        order = launch.Order(
            argv=container_argv(spec, image, env),
            env=env,
            cwd=spec.get("workingDir") or (image.working_dir if image else "") or str(home),
            mounts=self._mounts(spec, message_file, env),
            scratch=str(home.parent / f"{spec['name']}.scratch"),
            isolation=self._node.isolation,
        )
        return Start(order, message_file)

    async def _facts_for(self, spec: Object) -> PodFacts:
        found: dict[str, dict[str, Object | None]] = {"configmaps": {}, "secrets": {}}
        namespace = self._facts().pod["metadata"]["namespace"]
        for kind, name in sorted(referenced_objects(spec)):
            try:
                path = f"/api/v1/namespaces/{namespace}/{kind}/{name}"
                found[kind][name] = await self._node.api.get(path)
            except ApiError as error:
                if error.code != 404:
                    raise ConfigError(str(error)) from error
                found[kind][name] = None
            except UnreachableError as error:
                raise ConfigError(str(error)) from error
        return replace(self._facts(), config_maps=found["configmaps"], secrets=found["secrets"])

    def _mounts(
        self, spec: Object, message_file: Path, env: Mapping[str, str]
    ) -> list[launch.Mount]:
        mounts = [self._mount(item, env) for item in spec.get("volumeMounts") or []]
        message_path = spec.get("terminationMessagePath") or _MESSAGE_PATH
        if self._node.isolation is launch.Isolation.NONE:
            return self._without_namespaces(mounts)
        return [*mounts, launch.Mount(str(message_file), message_path)]

    @staticmethod
    def _without_namespaces(mounts: list[launch.Mount]) -> list[launch.Mount]:
        blocked = [m for m in mounts if m.target not in (m.source, _TOKEN_PATH)]
        if blocked:
            raise ConfigError(
                f"{blocked[0].target} cannot be mounted: this machine allows no namespaces to this "
                "user; run as root or set kernel.unprivileged_userns_clone=1"
            )
        return []

    def _mount(self, item: Object, env: Mapping[str, str]) -> launch.Mount:
        source = Path(self._volumes.source(item["name"]))
        sub_path = item.get("subPath") or ""
        if expression := item.get("subPathExpr"):
            sub_path = expand(expression, env)
        if sub_path:
            source = source / sub_path
            if not source.exists():
                source.mkdir(parents=True)
        return launch.Mount(str(source), item["mountPath"], bool(item.get("readOnly")))
