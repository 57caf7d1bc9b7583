"""Images that kubelet nodes have from the start, and the folders of this machine behind them.

An image of the cluster holds no programs: it contains links to folders of this machine that every
container sees, read-only, below /machine. So a pod runs the installed Python and its packages. It
sees no other files of the machine.
"""

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bamboo_devcluster.children.environment import container_path
from bamboo_devcluster.errors import DevclusterError, SpecError
from bamboo_devcluster.spec import ImageMap, machine_architecture

MACHINE_IMAGE = "devcluster.local/machine:1"
PAUSE_IMAGE = "devcluster.local/pause:1"
_BELOW = "/machine"
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt")
_SETTINGS = ("alternatives", "ssl", "ca-certificates", "pki", "ld.so.cache", "ld.so.conf",
             "ld.so.conf.d", "nsswitch.conf", "localtime")  # fmt: skip
# 65532: programs of images with a user of their own may ask for its name.
_USERS = """root:x:0:0:root:/:/bin/sh
nonroot:x:65532:65532::/:/bin/false
nobody:x:65534:65534::/:/bin/false
"""
_GROUPS = "root:x:0:\nnonroot:x:65532:\nnogroup:x:65534:\n"
_LAYER, _CONFIG = "application/vnd.oci.image.layer.v1.tar", "application/vnd.oci.image.config.v1"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"

Object = dict[str, Any]


@dataclass(frozen=True)
class Program:
    """An image: the program of this machine that it runs. Without a layer it links to it."""

    name: str
    command: Sequence[str] = ()
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    working_dir: str = "/"
    user: str = ""
    layer: bytes | None = None


def standard() -> list[Program]:
    """The images of every cluster: that of the machine, and the one that holds a pod's namespaces.

    containerd gives the second no folders of the machine, so that it holds copies.
    """
    program = shutil.which("sleep")
    if program is None:
        raise DevclusterError("Nodes of the kind kubelet need `sleep` on the PATH.")
    pause = Program(PAUSE_IMAGE, (program, "infinity"), layer=_copies_layer(program))
    return [Program(MACHINE_IMAGE), pause]


def environment() -> list[str]:
    """The folders and files of this machine that pods see: the system's, and this Python's.

    Paths without links. Those inside another one are left out.
    """
    wanted = [*_SYSTEM, *(f"/etc/{name}" for name in _SETTINGS), sys.prefix, sys.base_prefix]
    # `python -m` puts the working directory first.
    inherited = sys.path if sys.flags.safe_path else sys.path[1:]
    wanted += [path for path in inherited if os.path.isdir(path)]
    wanted += [path for path in os.environ.get("PYTHONPATH", "").split(":") if os.path.isdir(path)]
    found = sorted({os.path.realpath(path) for path in wanted if os.path.exists(path)})
    return [path for path in found if path != "/" and not _is_inside(path, found)]


def mounts(paths: Sequence[str]) -> list[Object]:
    """The mounts of the folders, for a container's OCI specification."""
    options = ["rbind", "ro", "nosuid", "nodev"]
    return [
        {"destination": _BELOW + path, "source": path, "type": "bind", "options": options}
        for path in paths
    ]


def write_archive(target: Path, programs: Sequence[Program], paths: Sequence[str]) -> None:
    """Write the images into one OCI archive. paths: from `environment`."""
    shared = _links_layer(paths)
    blobs: dict[str, bytes] = {}

    def add(data: bytes, kind: str) -> Object:
        digest = hashlib.sha256(data).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = data
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}

    manifests = []
    for program in programs:
        entry = add(shared if program.layer is None else program.layer, _LAYER)
        config = add(_json(_config(program, entry["digest"], paths)), f"{_CONFIG}+json")
        content = {"schemaVersion": 2, "mediaType": _MANIFEST, "config": config, "layers": [entry]}
        names = {"io.containerd.image.name": full_name(program.name)}
        manifests.append({**add(_json(content), _MANIFEST), "annotations": names})
    index: Object = {"schemaVersion": 2, "manifests": manifests}
    files = {"oci-layout": _json({"imageLayoutVersion": "1.0.0"}), "index.json": _json(index)}
    with tarfile.open(target, "w") as archive:
        for name, data in {**files, **blobs}.items():
            _add_file(archive, name, data)


def programs_of(images: ImageMap) -> list[Program]:
    """The images of an image map. Its patterns must be names: an image has exactly one.

    SpecError if a name holds a wildcard.
    """
    found = []
    for n, image in enumerate(images.entries):
        if any(sign in image.pattern for sign in "*?["):
            raise SpecError(
                f"images[{n}].image",
                f"{image.pattern!r} is a pattern; for kubelet nodes give the image's whole name",
            )
        found.append(
            Program(
                image.pattern,
                image.command,
                image.args,
                image.env,
                image.working_dir or "/",
                image.user,
            )
        )
    return found


def full_name(name: str) -> str:
    """The reference of an image with its registry and tag, as containerd completes it."""
    first, slash, _ = name.partition("/")
    if not slash:
        name = f"docker.io/library/{name}"
    elif "." not in first and ":" not in first and first != "localhost":
        name = f"docker.io/{name}"
    last = name.rpartition("/")[2]
    return name if ":" in last or "@" in last else f"{name}:latest"


def _copies_layer(program: str) -> bytes:
    """The program and its shared libraries, at their paths."""
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
    words = [word for line in listed.stdout.splitlines() for word in line.split()]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", dereference=True) as archive:
        for path in sorted({program, *(word for word in words if word.startswith("/"))}):
            archive.add(path)
    return buffer.getvalue()


def _links_layer(paths: Sequence[str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, mode in (("tmp", 0o1777), ("etc", 0o755)):
            _add_folder(archive, name, mode)
        _add_file(archive, "etc/passwd", _USERS.encode())
        _add_file(archive, "etc/group", _GROUPS.encode())
        made = {"", "tmp", "etc"}
        for path in paths:
            for parent in reversed(Path(path[1:]).parents):
                if str(parent) not in {".", *made}:
                    _add_folder(archive, str(parent), 0o755)
                    made.add(str(parent))
            _add_link(archive, path[1:], _BELOW + path)
        for path in _SYSTEM:
            if os.path.islink(path):  # /bin is a link to usr/bin
                _add_link(archive, path[1:], os.readlink(path))
    return buffer.getvalue()


def _config(program: Program, layer_digest: str, paths: Sequence[str]) -> Object:
    env = {"PATH": _below(container_path(), paths)}
    if modules := os.environ.get("PYTHONPATH"):
        env["PYTHONPATH"] = _below(modules, paths)
    env.update(program.env)
    return {
        "architecture": machine_architecture(),
        "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [layer_digest]},
        "config": {
            "Entrypoint": [
                word if program.layer else _below(word, paths) for word in program.command
            ],
            "Cmd": list(program.args),
            "Env": [f"{name}={value}" for name, value in env.items()],
            "WorkingDir": program.working_dir,
            "User": program.user,
        },
    }


def _below(text: str, paths: Sequence[str]) -> str:
    """Replace the paths of a search path by those below /machine, which no volume hides."""
    words = text.split(":")
    return ":".join(_BELOW + real if (real := _inner(word, paths)) else word for word in words)


def _inner(word: str, paths: Sequence[str]) -> str:
    """The path without links above its last part, if the containers see it; else nothing."""
    if not word.startswith("/"):
        return ""
    path = os.path.join(os.path.realpath(os.path.dirname(word)), os.path.basename(word))
    if os.path.isdir(path):
        path = os.path.realpath(path)
    return path if _is_inside(path, paths) or path in paths else ""


def _is_inside(path: str, others: Sequence[str]) -> bool:
    return any(path.startswith(other + "/") for other in others)


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _add_file(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), 0o644
    archive.addfile(entry, io.BytesIO(data))


def _add_folder(archive: tarfile.TarFile, name: str, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = tarfile.DIRTYPE, mode
    archive.addfile(entry)


def _add_link(archive: tarfile.TarFile, name: str, target: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = tarfile.SYMTYPE, target
    archive.addfile(entry)
