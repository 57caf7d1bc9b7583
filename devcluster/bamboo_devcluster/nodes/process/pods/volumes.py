"""A pod's volumes as folders on this machine, and their refresh.

Config maps, secrets, projected and downward API volumes are written as by a kubelet: a dated folder
with all files, a `..data` link to it that is replaced atomically, and links to the files through
it. Tokens come from the TokenRequest API and are renewed after 80 percent of their lifetime.
"""

import contextlib
import datetime as dt
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from bamboo_devcluster.kube import clock
from bamboo_devcluster.kube.client import ApiError, KubeApi
from bamboo_devcluster.kube.quantities import parse_quantity
from bamboo_devcluster.nodes.process.pods.env import (
    ConfigError,
    PodFacts,
    decode_data,
    field_value,
    resource_value,
)

Object = dict[str, Any]
Payload = dict[str, tuple[bytes, int]]

OBJECT_REFRESH_S = 10.0
_TOKEN_RENEW_SHARE = 0.8
_DEFAULT_MODE = 0o644
_WRITTEN_KINDS = ("configMap", "secret", "downwardAPI", "projected")


class VolumeError(Exception):
    """A volume cannot be set up yet; `kubectl describe` shows the text."""


class PodVolumes:
    """The volumes of one pod."""

    def __init__(self, api: KubeApi, directory: Path, facts: Callable[[], PodFacts]) -> None:
        self._api = api
        self._directory = directory
        self._facts = facts
        self._sources: dict[str, str] = {}
        self._tokens: dict[str, tuple[str, dt.datetime]] = {}

    def source(self, name: str) -> str:
        """Return the folder or file of a volume; `set_up` must have run."""
        return self._sources[name]

    async def set_up(self) -> None:
        """Create all volumes; raise VolumeError if one cannot be created."""
        for volume in self._facts().pod["spec"].get("volumes") or []:
            self._sources[volume["name"]] = str(await self._make(volume))

    async def refresh(self) -> None:
        """Renew tokens that are due, and rewrite files whose objects have changed."""
        for volume in self._facts().pod["spec"].get("volumes") or []:
            if payload_of := self._payload_maker(volume):
                target = Path(self._sources[volume["name"]])
                write_atomically(target, await payload_of())

    async def _make(self, volume: Object) -> Path:
        if "hostPath" in volume:
            return _host_path(volume["hostPath"])
        if "persistentVolumeClaim" in volume:
            return await self._claimed(volume["persistentVolumeClaim"]["claimName"])
        target = self._directory / str(volume["name"])
        target.mkdir(parents=True, exist_ok=True)
        if "emptyDir" in volume:
            target.chmod(0o777)
            return target
        payload_of = self._payload_maker(volume)
        if payload_of is None:
            kind = next((key for key in volume if key != "name"), "nothing")
            raise VolumeError(
                f"volume {volume['name']}: process nodes cannot mount {kind}; use emptyDir, "
                "configMap, secret, projected, downwardAPI, hostPath or persistentVolumeClaim"
            )
        write_atomically(target, await payload_of())
        return target

    async def _claimed(self, name: str) -> Path:
        """Return the folder of the volume that a claim is bound to."""
        namespace = self._facts().pod["metadata"]["namespace"]
        claims = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
        try:
            claim = await self._api.get(f"{claims}/{name}")
            volume = (claim.get("spec") or {}).get("volumeName")
            if not volume:
                raise VolumeError(f"persistentvolumeclaim {name} is not bound")
            found = await self._api.get(f"/api/v1/persistentvolumes/{volume}")
        except ApiError as error:
            raise VolumeError(str(error)) from error
        spec: Object = found["spec"]
        if not (source := spec.get("hostPath") or spec.get("local")):
            raise VolumeError(f"persistentvolume {volume}: process nodes mount hostPath and local")
        return _host_path(source)

    def excess(self) -> str:
        """Return the kubelet's words about an emptyDir above its size limit, else nothing."""
        for volume in self._facts().pod["spec"].get("volumes") or []:
            limit = (volume.get("emptyDir") or {}).get("sizeLimit")
            if limit and _usage(Path(self._sources[volume["name"]])) > parse_quantity(str(limit)):
                return f'Usage of EmptyDir volume "{volume["name"]}" exceeds the limit "{limit}". '
        return ""

    def _payload_maker(self, volume: Object) -> Callable[[], Awaitable[Payload]] | None:
        kind = next((k for k in _WRITTEN_KINDS if k in volume), None)
        if kind is None:
            return None
        source: Object = volume[kind]
        mode = int(source.get("defaultMode", _DEFAULT_MODE))
        sources: list[Object] = source.get("sources") or []
        if kind != "projected":
            sources = [{kind: source}]
        return lambda: self._payload(volume["name"], sources, mode)

    async def _payload(self, name: str, sources: list[Object], mode: int) -> Payload:
        payload: Payload = {}
        try:
            for index, source in enumerate(sources):
                payload.update(await self._source_payload(f"{name}/{index}", source, mode))
        except ConfigError as error:
            raise VolumeError(f"volume {name}: {error}") from error
        return payload

    async def _source_payload(self, key: str, source: Object, mode: int) -> Payload:
        if "configMap" in source:
            return await self._object_payload("configmaps", source["configMap"], mode)
        if "secret" in source:
            return await self._object_payload("secrets", source["secret"], mode)
        if "downwardAPI" in source:
            return self._downward_payload(source["downwardAPI"], mode)
        if "serviceAccountToken" in source:
            request = source["serviceAccountToken"]
            token = await self._token(key, request)
            return {request["path"]: (token.encode(), 0o600)}
        raise VolumeError(f"process nodes cannot project {sorted(source)}")

    async def _object_payload(self, kind: str, source: Object, mode: int) -> Payload:
        name = source.get("name") or source.get("secretName") or ""
        namespace = self._facts().pod["metadata"]["namespace"]
        try:
            item = await self._api.get(f"/api/v1/namespaces/{namespace}/{kind}/{name}")
        except ApiError as error:
            if error.code == 404 and source.get("optional"):
                return {}
            raise VolumeError(str(error)) from error
        data = decode_data(item, kind)
        if not source.get("items"):
            return {key: (value, mode) for key, value in data.items()}
        payload: Payload = {}
        for entry in source["items"]:
            if entry["key"] in data:
                payload[entry["path"]] = (data[entry["key"]], entry.get("mode", mode))
            elif not source.get("optional"):
                raise VolumeError(f"{kind.removesuffix('s')} {name} has no key {entry['key']}")
        return payload

    def _downward_payload(self, source: Object, mode: int) -> Payload:
        facts = self._facts()
        payload: Payload = {}
        for entry in source.get("items") or []:
            if "fieldRef" in entry:
                value = field_value(entry["fieldRef"]["fieldPath"], facts)
            else:
                reference = entry["resourceFieldRef"]
                containers = facts.pod["spec"]["containers"]
                owner = next(c for c in containers if c["name"] == reference["containerName"])
                value = resource_value(reference, owner, facts)
            payload[entry["path"]] = (value.encode(), entry.get("mode", mode))
        return payload

    async def _token(self, key: str, request: Object) -> str:
        if key in self._tokens and clock.now() < self._tokens[key][1]:
            return self._tokens[key][0]
        pod = self._facts().pod
        metadata, account = pod["metadata"], pod["spec"].get("serviceAccountName", "default")
        path = f"/api/v1/namespaces/{metadata['namespace']}/serviceaccounts/{account}/token"
        bound = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"],
                 "uid": metadata["uid"]}  # fmt: skip
        spec: Object = {
            "expirationSeconds": request.get("expirationSeconds", 3600),
            "boundObjectRef": bound,
        }
        if request.get("audience"):
            spec["audiences"] = [request["audience"]]
        try:
            answer = await self._api.post(path, {"spec": spec})
        except ApiError as error:
            raise VolumeError(f"token of {account}: {error}") from error
        issued_at = clock.now()
        life = clock.from_time(answer["status"]["expirationTimestamp"]) - issued_at
        token = str(answer["status"]["token"])
        self._tokens[key] = (token, issued_at + life * _TOKEN_RENEW_SHARE)
        return token


def write_atomically(target: Path, payload: Payload) -> bool:
    """Replace the content of `target` by the payload in one step; return whether it changed."""
    if _current(target) == payload:
        return False
    dated = Path(tempfile.mkdtemp(prefix=f"..{clock.now():%Y_%m_%d_%H_%M_%S}.", dir=target))
    dated.chmod(0o755)
    for name, (data, mode) in payload.items():
        path = dated / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(mode)
    old = target / os.readlink(target / "..data") if (target / "..data").is_symlink() else None
    (target / "..data_tmp").unlink(missing_ok=True)
    (target / "..data_tmp").symlink_to(dated.name)
    (target / "..data_tmp").rename(target / "..data")
    _link_names(target, {name.split("/")[0] for name in payload})
    if old:
        shutil.rmtree(old, ignore_errors=True)
    return True


def _link_names(target: Path, names: set[str]) -> None:
    for path in target.iterdir():
        if not path.name.startswith("..") and path.name not in names:
            path.unlink()
    for name in sorted(names):
        if not (target / name).is_symlink():
            (target / name).symlink_to(Path("..data") / name)


def _current(target: Path) -> Payload | None:
    data = target / "..data"
    if not data.is_symlink():
        return None
    root = target / os.readlink(data)
    files = [path for path in root.rglob("*") if path.is_file()]
    return {
        str(path.relative_to(root)): (path.read_bytes(), path.stat().st_mode & 0o7777)
        for path in files
    }


def _usage(folder: Path) -> int:
    """Return the bytes of all files below a folder; what vanishes meanwhile counts for nothing."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += (Path(root) / name).lstat().st_size
    return total


def _host_path(source: Object) -> Path:
    path, kind = Path(source["path"]), source.get("type") or ""
    if kind == "DirectoryOrCreate" or (not kind and not path.exists()):
        path.mkdir(parents=True, exist_ok=True)
    elif kind == "FileOrCreate":
        path.touch(exist_ok=True)
    checks: dict[str, Callable[[], bool]] = {
        "": path.exists, "Directory": path.is_dir, "DirectoryOrCreate": path.is_dir,
        "File": path.is_file, "FileOrCreate": path.is_file, "Socket": path.is_socket,
        "CharDevice": path.is_char_device, "BlockDevice": path.is_block_device,
    }  # fmt: skip
    if not checks.get(kind, path.exists)():
        raise VolumeError(f"hostPath type check failed: {path} is not {kind or 'there'}")
    return path
