"""The control groups of a cluster's machines: where they are, freezing, ending, removing.

Works with version 1 (a hierarchy for each controller) and version 2 (one for all).
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
_LEAF = "machine"  # containerd, the kubelet and the shims; the pods are beside it
_WANTED = {"cpu", "cpuset", "io", "memory", "pids"}


class Group:
    """One control group, in all hierarchies; `path` is relative to their roots."""

    def __init__(self, path: str, root: Path = ROOT) -> None:
        self.path = path
        self._root = root

    def create(self) -> None:
        """Create the group and its group for the machine's own programs."""
        parts = [*Path(self.path).parts, _LEAF]
        for top in hierarchies(self._root):
            folder = top
            for part in parts:
                _delegate(folder)
                (folder / part).mkdir(exist_ok=True)
                _share_processors(folder, folder / part)
                folder /= part

    def doors(self) -> list[str]:
        """The files by which a process enters the group: it writes 0."""
        return [str(top / self.path / _LEAF / "cgroup.procs") for top in hierarchies(self._root)]

    def members(self) -> set[int]:
        """The processes in the group and below, as far as any hierarchy knows them."""
        return {pid for folder in self.folders() for pid in _members(folder)}

    def folders(self) -> Iterator[Path]:
        """All folders of the group, inner ones first."""
        for top in hierarchies(self._root):
            for name, _, _ in os.walk(top / self.path, topdown=False):
                yield Path(name)

    def freeze(self, stopped: bool) -> None:
        """Stop or resume all processes of the group."""
        new, old = self._root / self.path, self._root / "freezer" / self.path
        if (new / "cgroup.freeze").exists():
            (new / "cgroup.freeze").write_text("1" if stopped else "0")
        elif (old / "freezer.state").exists():
            (old / "freezer.state").write_text("FROZEN" if stopped else "THAWED")

    @property
    def is_frozen(self) -> bool:
        """Whether all processes have stopped."""
        new, old = self._root / self.path, self._root / "freezer" / self.path
        if (new / "cgroup.events").exists():
            return "frozen 1" in (new / "cgroup.events").read_text()
        return (old / "freezer.state").read_text().strip() == "FROZEN"

    def end(self) -> None:
        """SIGKILL all processes in the group and below. A frozen one ends once it is thawed."""
        kill(self.members())
        for folder in self.folders():  # of version 1: thawing a group leaves those below frozen
            for name, word in (("cgroup.freeze", "0"), ("freezer.state", "THAWED")):
                if (folder / name).exists():
                    (folder / name).write_text(word)
        kill(self.members())  # what was started meanwhile

    def remove(self) -> bool:
        """Delete the group's folders; return whether none is left. Its processes have ended."""
        for folder in self.folders():
            try:
                folder.rmdir()
            except OSError:
                continue
        return not any(self.folders())


def hierarchies(root: Path = ROOT) -> list[Path]:
    """The roots of all hierarchies; links are left out."""
    if (root / "cgroup.controllers").exists():
        return [root]
    found = [path for path in sorted(root.iterdir()) if not path.is_symlink()]
    return [path for path in found if (path / "cgroup.procs").exists()]


def kill(pids: set[int]) -> None:
    """SIGKILL processes; those that have ended are left out."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _members(folder: Path) -> list[int]:
    try:
        return [int(line) for line in (folder / "cgroup.procs").read_text().split()]
    except OSError:
        return []  # it was removed meanwhile


def _delegate(folder: Path) -> None:
    """Version 2: let the groups below use the controllers."""
    offered = folder / "cgroup.controllers"
    if offered.exists():
        names = sorted(_WANTED & set(offered.read_text().split()))
        (folder / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in names))


def _share_processors(parent: Path, child: Path) -> None:
    """Version 1: a new cpuset has no processors until it is given some."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        if (child / name).exists() and not (child / "cgroup.controllers").exists():
            (child / name).write_text((parent / name).read_text())
