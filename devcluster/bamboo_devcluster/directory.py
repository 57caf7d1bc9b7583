"""A cluster's directory: lock, preparation and removal.

The daemon holds the lock file while it runs, so stale PID files cannot make a dead cluster look
alive.
"""

import contextlib
import errno
import fcntl
import os
import select
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from bamboo_devcluster.errors import DirectoryError, disk_full_message, is_disk_full
from bamboo_devcluster.nodes.kubelet.leftovers import remove_leftovers

_STOP_TIMEOUT_S = 30.0
_UNLOCK_TIMEOUT_S = 3.0
_POLL_S = 0.05
_MIN_FREE_BYTES = 200 * 2**20


def lock_directory(root: Path) -> TextIO | None:
    """Lock the directory until this process ends; None if another process holds the lock."""
    file = (root / "lock").open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file


def sign_lock(lock: TextIO) -> None:
    """Write this process's id into the lock that it holds."""
    lock.seek(0)
    lock.truncate()
    lock.write(str(os.getpid()))
    lock.flush()


def check_directory(root: Path) -> None:
    """Raise DirectoryError unless the directory is a cluster's, empty, or missing."""
    try:
        if not root.exists():
            return
        if not root.is_dir():
            raise DirectoryError(f"{root} is a file; choose another --dir.")
        names = {path.name for path in root.iterdir()}
    except OSError as error:
        raise unusable(root, error) from error
    if names and "config.json" not in names and names != {"lock"}:
        raise DirectoryError(f"{root} contains other files; choose an empty --dir.")


def remove_files(root: Path) -> None:
    """Delete the files of a cluster, except the lock file."""
    for path in root.iterdir():
        if path.name == "lock":
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def is_running(root: Path) -> bool:
    """Return whether a daemon holds the directory's lock."""
    try:
        with (root / "lock").open() as file:
            # Shared, so that concurrent callers do not mistake each other for a daemon.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except BlockingIOError:
        return True
    except OSError as error:
        raise unusable(root, error) from error
    return False


def prepare_directory(root: Path, report: Callable[[str], None]) -> Path:
    """Prepare the directory for a new cluster; remove the files of a killed one."""
    check_directory(root)
    if is_running(root):
        raise DirectoryError(
            f"A cluster is already running in {root}; use it, or end it with"
            f" `bamboo-devcluster down --dir {root}`."
        )
    try:
        _check_space(root)
        root.mkdir(parents=True, exist_ok=True)
        if (root / "config.json").exists():
            report(f"The cluster in {root} ended without `down`; removing its files.")
            remove_leftovers(root)
            remove_files(root)
        for folder in (root / "logs", root / "nodes"):
            folder.mkdir(exist_ok=True)
    except OSError as error:
        raise unusable(root, error) from error
    return root


def unusable(root: Path, error: OSError) -> DirectoryError:
    """The error for a directory that cannot be written."""
    return DirectoryError(
        disk_full_message(root)
        if is_disk_full(error)
        else f"Cannot use {root}: {error.strerror or error}; choose another --dir."
    )


def _check_space(root: Path) -> None:
    """Check the free space where the directory will be created."""
    free = os.statvfs(next(path for path in (root, *root.parents) if path.exists()))
    if free.f_blocks and free.f_bavail * free.f_frsize < _MIN_FREE_BYTES:  # /proc has no blocks
        raise DirectoryError(disk_full_message(root))


def stop_cluster(root: Path) -> bool:
    """Stop the cluster in a directory and delete its files; return whether it was running.

    If the daemon cannot be stopped, raises DirectoryError and deletes nothing.
    """
    check_directory(root)
    if not root.exists():
        return False
    was_running = is_running(root)
    if was_running:
        _stop_daemon(root)
    remove_leftovers(root)
    try:
        remove_files(root)
        (root / "lock").unlink(missing_ok=True)
    except OSError as error:
        raise unusable(root, error) from error
    with contextlib.suppress(OSError):  # the user has added files
        root.rmdir()
    return was_running


def _stop_daemon(root: Path) -> None:
    """Return once the lock is free; raise DirectoryError if it stays held."""
    deadline = time.monotonic() + _UNLOCK_TIMEOUT_S
    while is_running(root):
        if time.monotonic() > deadline:
            raise DirectoryError(_held_message(root))
        _end_holder(root)
        time.sleep(_POLL_S)  # it is closing its last files, or has not signed the lock yet


def _end_holder(root: Path) -> None:
    """Stop the process whose PID is in the lock file, if it exists."""
    try:
        process = os.pidfd_open(int(_signature(root)))
    except (ProcessLookupError, ValueError, OverflowError):
        return
    except OSError as error:
        if error.errno != errno.EINVAL:  # a PID below 1 is invalid
            raise unusable(root, error) from error
        return
    try:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, number)
            if select.select([process], [], [], _STOP_TIMEOUT_S)[0]:
                return
    except PermissionError as error:
        raise DirectoryError(_held_message(root)) from error
    finally:
        os.close(process)


def _signature(root: Path) -> str:
    """The content of the lock file, shortened for an error message."""
    try:
        return (root / "lock").read_text(errors="replace")[:40]
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise unusable(root, error) from error


def _held_message(root: Path) -> str:
    return (
        f"A process holds {root}/lock, and the process id in it, {_signature(root)!r}, is not one"
        f" that we can stop; stop the process that `fuser {root}/lock` shows, then try again."
    )
