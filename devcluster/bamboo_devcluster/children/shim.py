"""Starts one program that cannot outlive its parent process.

Run as `python -I -S shim.py`, with a JSON order on stdin. Uses only the standard library. The
order's `mode` is one of

plain   become the program: own session, killed by the kernel when the parent dies.
jail    start the program as process 1 of a new PID namespace in a new mount namespace with the
        ordered bind mounts, as a sibling of this shim (CLONE_PARENT). When process 1 or the parent
        dies, the kernel kills everything inside. With `machine`, it also has its own network, host
        name and IPC.
enter   run the program inside the namespaces of a running jail (exec probes and hooks).

The shim writes {"pid": N} to the file descriptor `status_fd`, and {"error": ...} if the program
could not be started. The descriptor closes when the program runs.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import signal
import sys

TYPE_CHECKING = False  # importing typing takes a third of this program's start time
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    Order = dict[str, Any]
    Report = Callable[[dict[str, Any]], None]

PR_SET_PDEATHSIG = 1
CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID, CLONE_PARENT = 0x20000, 0x10000000, 0x20000000, 0x8000
CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWNET = 0x4000000, 0x8000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2
SYS_CLONE = {"x86_64": 56, "aarch64": 220}
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> int:
    """Raise OSError if a C call failed."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def mount(
    source: str | None,
    target: str,
    kind: str | None = None,
    flags: int = 0,
    data: str | None = None,
) -> None:
    """mount(2), with text arguments."""
    texts = [None if text is None else text.encode() for text in (source, target, kind, data)]
    result = libc.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3])
    check(result, f"mount {source} on {target}")


def die_with_parent(parent: int | None) -> None:
    """Request SIGKILL for the parent's death; exit if the parent is already dead."""
    check(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
    if parent is not None and os.getppid() != parent:
        os._exit(137)


class View:
    """The container's view of the file system: the real one, with mount points added.

    A missing mount point must not be created on the real file system. Instead, its nearest existing
    ancestor becomes a tmpfs with bind mounts of all its entries, plus the new name. The ancestor
    may be the root.
    """

    def __init__(self, scratch: str) -> None:
        self.scratch = scratch
        self.synthetic: set[str] = set()
        self.volumes: list[str] = []
        self.has_old_root = False

    def place(self, path: str, is_dir: bool) -> str:
        """Return the real path of a mount point at `path`; create it if missing."""
        path = os.path.realpath(path)
        missing = []
        while not os.path.lexists(path):
            path, name = os.path.split(path)
            missing.append(name)
        if not missing:
            return path
        if path not in self.synthetic and not self.is_in_volume(path):
            self.mimic(path)
        for left in range(len(missing), 0, -1):
            path = os.path.join(path, missing[left - 1])
            make_mount_point(path, is_dir or left > 1)
            self.synthetic.add(path)
        return path

    def mimic(self, directory: str) -> None:
        """Make a directory writable in this namespace only; it keeps its entries."""
        if directory == "/":
            self.new_root()
            return
        mode = os.stat(directory).st_mode & 0o7777
        # The directory below the tmpfs stays reachable through this descriptor.
        below = os.open(directory, os.O_PATH | os.O_DIRECTORY)
        mount("tmpfs", directory, "tmpfs", 0, f"mode={mode:o}")
        self.copy_entries(f"/proc/self/fd/{below}", directory)
        os.close(below)
        self.synthetic.add(directory)

    def new_root(self) -> None:
        """Replace the root by a tmpfs with the entries of the old root."""
        root = self.scratch
        os.makedirs(root, exist_ok=True)
        mount("tmpfs", root, "tmpfs", 0, "mode=0755")
        self.copy_entries("/", root)
        old = os.path.join(root, ".old")
        os.mkdir(old)
        number = SYS_PIVOT_ROOT[platform.machine()]
        check(libc.syscall(number, root.encode(), old.encode()), "pivot_root")
        os.chdir("/")
        self.has_old_root = True
        self.synthetic.add("/")

    def is_in_volume(self, path: str) -> bool:
        """Return whether the path is in a mounted volume; new names are created there."""
        return any(path == v or path.startswith(v + "/") for v in self.volumes)

    def finish(self) -> None:
        """Unmount the old root; mount sources are reachable through it until now."""
        if self.has_old_root:
            check(libc.umount2(b"/.old", MNT_DETACH), "umount")
            os.rmdir("/.old")

    @staticmethod
    def copy_entries(source: str, target: str) -> None:
        """Bind every entry of a directory into another; symbolic links are copied."""
        for entry in os.scandir(source):
            there = os.path.join(target, entry.name)
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), there)
                continue
            make_mount_point(there, entry.is_dir())
            try:
                mount(entry.path, there, None, MS_BIND | MS_REC)
            except FileNotFoundError:
                continue  # it vanished meanwhile; /tmp and /run change all the time


def make_mount_point(path: str, is_dir: bool) -> None:
    """Make an empty directory or file to mount on."""
    if is_dir:
        os.mkdir(path, 0o755)
    else:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))


def bind_all(view: View, mounts: list[Order]) -> None:
    """Bind the ordered mounts (source, target, read_only), outer ones first."""
    # Open all sources first: a later mimic may hide a source behind its tmpfs.
    mounts = sorted(mounts, key=lambda item: item["target"].count("/"))
    sources = [os.open(item["source"], os.O_PATH) for item in mounts]
    for item, descriptor in zip(mounts, sources, strict=True):
        bind(view, item, descriptor)
        os.close(descriptor)
    view.finish()


def bind(view: View, item: Order, descriptor: int) -> None:
    """Bind one mount from an open source."""
    target = view.place(item["target"], os.path.isdir(f"/proc/self/fd/{descriptor}"))
    mount(f"/proc/self/fd/{descriptor}", target, None, MS_BIND | MS_REC)
    if item.get("read_only"):
        flags = MS_BIND | MS_REMOUNT | MS_RDONLY
        kept = os.statvfs(target).f_flag & (MS_NOSUID | MS_NODEV | MS_NOEXEC)
        mount(None, target, None, flags | kept)
    view.volumes.append(target)


def enter_new_namespaces(order: Order) -> None:
    """Unshare. Without privileges, use a user namespace that maps the user to itself."""
    uid, gid = os.getuid(), os.getgid()
    flags = CLONE_NEWNS | CLONE_NEWPID
    if order.get("machine"):
        flags |= CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWNET
    if order["user_namespace"]:
        flags |= CLONE_NEWUSER
    check(libc.unshare(flags), "unshare")
    if order["user_namespace"]:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"),
                           ("gid_map", f"{gid} {gid} 1")):  # fmt: skip
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    mount(None, "/", None, MS_REC | MS_PRIVATE)


def start(order: Order) -> NoReturn:
    """Replace this process by the ordered program."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.chdir(order["cwd"])
    env = order["env"]
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    os.execvpe(order["argv"][0], order["argv"], env)


def run_plain(order: Order, parent: int, report: Report) -> None:
    """Become the program."""
    os.setsid()
    die_with_parent(parent)
    report({"pid": os.getpid()})
    start(order)


def run_jail(order: Order, parent: int, report: Report) -> None:
    """Start the program as process 1 of new namespaces, child of our own parent."""
    die_with_parent(parent)
    enter_new_namespaces(order)
    view = View(order["scratch"])
    bind_all(view, order["mounts"])
    number = SYS_CLONE[platform.machine()]
    pid = check(libc.syscall(number, CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0), "clone")
    if pid:
        report({"pid": pid})
        os._exit(0)
    die_with_parent(None)
    report({})  # fails if the parent died before we requested the signal; then we exit too
    os.setsid()
    try:
        mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    except OSError:
        if not order["user_namespace"]:
            raise  # in a user namespace the kernel may refuse; then keep the real /proc
    start(order)


def run_enter(order: Order, parent: int, report: Report) -> None:
    """Run the program inside the namespaces of process `target`."""
    die_with_parent(parent)
    target = order["target"]
    names = (["user"] if order["user_namespace"] else []) + ["pid", "mnt"]
    descriptors = [os.open(f"/proc/{target}/ns/{name}", os.O_RDONLY) for name in names]
    for descriptor, name in zip(descriptors, names, strict=True):
        check(libc.setns(descriptor, 0), f"setns {name}")
    number = SYS_CLONE[platform.machine()]
    pid = check(libc.syscall(number, CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0), "clone")
    if pid:
        report({"pid": pid})
        os._exit(0)
    die_with_parent(None)
    report({})
    os.setsid()
    start(order)


def main() -> None:
    """Read the order, execute it, report a failure."""
    order = json.load(sys.stdin)
    status = order["status_fd"]
    os.set_inheritable(status, False)

    def report(message: dict[str, Any]) -> None:
        os.write(status, json.dumps(message).encode() + b"\n")

    modes = {"plain": run_plain, "jail": run_jail, "enter": run_enter}
    try:
        modes[order["mode"]](order, order["parent"], report)
    except OSError as error:
        report({"error": str(error), "errno": error.errno})
        os._exit(127)


if __name__ == "__main__":
    main()
