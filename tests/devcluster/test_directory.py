"""The cluster directory: what is refused and what is cleaned up."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bamboo_devcluster import cluster, directory
from bamboo_devcluster.cluster import Cluster, Options
from bamboo_devcluster.directory import (
    is_running,
    lock_directory,
    prepare_directory,
    sign_lock,
    stop_cluster,
)
from bamboo_devcluster.errors import DevclusterError, DirectoryError, SpecError
from bamboo_devcluster.spec import NodeSpec


def remains(root: Path) -> Path:
    """The files that a killed cluster leaves."""
    (root / "etcd").mkdir(parents=True)
    (root / "config.json").write_text("{}")
    (root / "lock").touch()
    (root / "link").symlink_to(root.parent)
    return root


def test_files_of_a_killed_cluster_are_removed_with_a_message(tmp_path: Path) -> None:
    root = remains(tmp_path / "c")
    said: list[str] = []
    assert prepare_directory(root, said.append) == root
    assert said == [f"The cluster in {root} ended without `down`; removing its files."]
    assert sorted(p.name for p in root.iterdir()) == ["lock", "logs", "nodes"]


def test_down_removes_its_files_and_keeps_others(tmp_path: Path) -> None:
    root = remains(tmp_path / "c")
    assert not stop_cluster(root)
    assert not root.exists()
    assert not stop_cluster(root), "a second time does nothing"


def test_a_directory_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    for act in (lambda: prepare_directory(tmp_path, print), lambda: stop_cluster(tmp_path)):
        with pytest.raises(DirectoryError, match="contains other files; choose an empty --dir"):
            act()
    assert (tmp_path / "thesis.tex").exists()


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    with pytest.raises(DirectoryError, match="is a file; choose another --dir"):
        prepare_directory(tmp_path / "f", print)


def test_a_directory_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    with pytest.raises(DirectoryError, match=r"Cannot use .*Not a directory"):
        prepare_directory(tmp_path / "f" / "deeper", print)


def test_a_full_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "_MIN_FREE_BYTES", 1 << 62)
    with pytest.raises(DirectoryError, match=r"The disk that holds .* is full; free some space"):
        prepare_directory(tmp_path / "c", print)
    assert not (tmp_path / "c").exists()

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", fail)
    with pytest.raises(DirectoryError, match=r"The disk that holds .* is full; free some space"):
        prepare_directory(tmp_path / "d", print)


def test_a_held_lock_is_a_running_cluster(tmp_path: Path) -> None:
    lock = lock_directory(tmp_path)
    assert lock is not None
    with lock:
        assert is_running(tmp_path)
        assert lock_directory(tmp_path) is None
        with pytest.raises(DirectoryError, match="already running"):
            prepare_directory(tmp_path, print)
    assert not is_running(tmp_path)


def test_down_kills_a_daemon_that_does_not_end(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(directory, "_STOP_TIMEOUT_S", 0.2)
    script = f"""
import signal, time
from pathlib import Path
from bamboo_devcluster.directory import lock_directory, sign_lock
signal.signal(15, signal.SIG_IGN)
lock = lock_directory(Path({str(tmp_path)!r}))
sign_lock(lock)
print("locked", flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as daemon:
        assert daemon.stdout is not None
        daemon.stdout.readline()
        assert stop_cluster(tmp_path)
        assert daemon.wait() == -9


@pytest.mark.parametrize("text", ["", "999999999"])
def test_a_daemon_that_has_just_ended_is_no_error(tmp_path, text, monkeypatch) -> None:
    (tmp_path / "lock").write_text(text)
    answers = iter([True, True, False])
    monkeypatch.setattr(directory, "is_running", lambda _: next(answers))
    assert stop_cluster(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "four", "0", "-3", "9" * 30, "999999999", "\xff\xfe"], ids=repr
)
def test_a_daemon_that_cannot_be_found_keeps_its_files(tmp_path, text, monkeypatch) -> None:
    monkeypatch.setattr(directory, "_UNLOCK_TIMEOUT_S", 0.0)
    remains(tmp_path / "c")
    lock = lock_directory(tmp_path / "c")
    assert lock is not None
    with lock:
        (tmp_path / "c/lock").write_text(text, encoding="latin-1")
        before = sorted((tmp_path / "c").iterdir())
        with pytest.raises(DirectoryError) as refused:
            stop_cluster(tmp_path / "c")
        assert sorted((tmp_path / "c").iterdir()) == before
    where = f"{tmp_path}/c/lock"
    assert str(refused.value).startswith(f"A process holds {where}, and the process id in it, '")
    assert str(refused.value).endswith(
        f"; stop the process that `fuser {where}` shows, then try again."
    )
    assert not stop_cluster(tmp_path / "c"), "the lock is free, whatever the file contains"


def test_a_daemon_of_another_user_keeps_its_files(tmp_path, monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(signal, "pidfd_send_signal", refuse)
    lock = lock_directory(remains(tmp_path / "c"))
    assert lock is not None
    with lock:
        sign_lock(lock)
        with pytest.raises(
            DirectoryError, match=f"id in it, '{os.getpid()}', is not one that we can"
        ):
            stop_cluster(tmp_path / "c")
    assert (tmp_path / "c/config.json").exists()


def test_concurrent_callers_do_not_mistake_each_other_for_a_daemon(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        assert not is_running(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 3}'])
def test_a_damaged_state_file_is_reported(tmp_path: Path, text: str) -> None:
    (tmp_path / "cluster.json").write_text(text)
    lock = lock_directory(tmp_path)
    assert lock is not None
    with lock, pytest.raises(DirectoryError, match=r"cluster.json is damaged, .*; end it with `ba"):
        Cluster.attach(tmp_path)


def test_the_lock_names_its_holder(tmp_path: Path) -> None:
    lock = lock_directory(tmp_path)
    assert lock is not None
    with lock:
        sign_lock(lock)
        sign_lock(lock)
    assert (tmp_path / "lock").read_text() == str(os.getpid())


def test_attaching_without_a_cluster_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DirectoryError, match=r"No cluster is running in .*; start it with `up`"):
        Cluster.attach(tmp_path)
    (tmp_path / "cluster.json").write_text("{}")
    with pytest.raises(DirectoryError, match="was killed without `down`"):
        Cluster.attach(tmp_path)


def test_a_wrong_image_map_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="images"):
        Cluster.up(tmp_path / "c", images={"images": [{}]})
    with pytest.raises(SpecError, match="images: cannot read"):
        Cluster.up(tmp_path / "c", images=tmp_path / "none.yaml")


def test_two_nodes_with_the_same_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"nodes\[1\].name: 'a' is given twice"):
        Cluster.up(tmp_path / "c", nodes=[NodeSpec("a"), NodeSpec("a")])


def test_a_start_without_programs_reports_why(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("KUBERNETES", "ETCD", "HELM"):
        monkeypatch.setenv(f"BAMBOO_{name}_URL", "http://127.0.0.1:9")
    with pytest.raises(DevclusterError, match="`go` is not on the PATH"):
        Cluster.up(tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_a_failed_daemon_is_reported_with_its_last_log_line(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(DevclusterError, match="daemon exited with code 1: nothing was logged"):
        Cluster.up(tmp_path / "c")
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("patience_s", [10.0, 0.0])
def test_an_interrupted_start_leaves_nothing(tmp_path, monkeypatch, patience_s) -> None:
    """``patience_s`` 0: the daemon ignores SIGTERM, and is killed."""
    children = []

    def interrupt(status: object, child: subprocess.Popen[bytes], *rest: object) -> None:
        children.append(child)
        raise KeyboardInterrupt

    monkeypatch.setattr(cluster, "_await_ready", interrupt)
    monkeypatch.setattr(cluster, "_GIVE_UP_S", patience_s)
    with pytest.raises(KeyboardInterrupt):
        Cluster.up(tmp_path / "c", options=Options(outlives_caller=True))
    assert children[0].returncode is not None
    assert not (tmp_path / "c").exists()


def test_the_slower_of_two_starts_does_not_disturb_the_other(tmp_path, monkeypatch) -> None:
    locks = []

    def be_slower(status: object, child: subprocess.Popen[bytes], root: Path, *_: object) -> None:
        child.kill()
        child.wait()
        locks.append(lock_directory(root))
        raise DevclusterError(f"another cluster is running in {root}")

    monkeypatch.setattr(cluster, "_await_ready", be_slower)
    with pytest.raises(DevclusterError, match="another cluster is running in"):
        Cluster.up(tmp_path / "c")
    (lock,) = locks
    assert lock is not None
    with lock:
        assert (tmp_path / "c/config.json").exists()


def test_files_stay_if_the_error_names_the_logs(tmp_path, monkeypatch) -> None:
    def fail(status: object, child: object, root: Path, *rest: object) -> None:
        raise DevclusterError(f"kube-apiserver was not ready; see {root / 'logs'}")

    monkeypatch.setattr(cluster, "_await_ready", fail)
    with pytest.raises(DevclusterError, match=r"see .*/logs"):
        Cluster.up(tmp_path / "c")
    assert (tmp_path / "c/logs/daemon.log").exists()
    assert not is_running(tmp_path / "c")


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.ENOSPC, "The disk that holds .* is full; free some"), (errno.EROFS, "Cannot use .*")],
)
def test_a_directory_that_becomes_unwritable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", fail)
        with pytest.raises(DirectoryError, match=words):
            Cluster.up(tmp_path / "c")
    assert prepare_directory(tmp_path / "c", print), "it can be tried again"


def test_a_directory_that_cannot_be_read_or_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    remains(tmp_path / "c")
    acts = (lambda: prepare_directory(tmp_path / "c", print), lambda: stop_cluster(tmp_path / "c"))
    for name in ("open", "iterdir"):
        for act in acts:
            with monkeypatch.context() as patched:
                patched.setattr(Path, name, fail)
                with pytest.raises(DirectoryError) as refused:
                    act()
            assert str(refused.value) == (
                f"Cannot use {tmp_path}/c: Read-only file system; choose another --dir."
            )


def test_a_file_system_without_blocks_is_not_called_full() -> None:
    with pytest.raises(DirectoryError, match=r"Cannot use /proc/c: .*; choose another --dir"):
        prepare_directory(Path("/proc/c"), print)


def test_a_file_is_not_a_cluster(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    with pytest.raises(DirectoryError, match=r"No cluster is running in .*; start it with `up`"):
        Cluster.attach(tmp_path / "f")


@pytest.mark.parametrize("lead_s", [-5.0, float("nan"), float("inf")])
def test_a_notice_needs_a_valid_lead_time(tmp_path: Path, lead_s: float) -> None:
    with pytest.raises(SpecError, match=r"lead: .* is not a number of seconds; give 0 or more"):
        Cluster(tmp_path, {}).notice_node("a", lead_s)
