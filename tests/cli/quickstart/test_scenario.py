"""The parts of the quick start that need no cluster; tests/e2e runs all of it."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from bamboo_cli.errors import CommandError
from bamboo_cli.job.snapshot import Snapshot
from bamboo_cli.job.state import Job, read_job
from bamboo_cli.quickstart import job_file, local_cluster, scenario, session
from bamboo_cli.quickstart.local_cluster import provision
from bamboo_cli.quickstart.programs import Programs
from bamboo_cli.quickstart.stopwatch import Stopwatch
from bamboo_devcluster.errors import BinaryError, DirectoryError
from bamboo_devcluster.spec import ImageMap


class FakeCluster:
    """Records that it was stopped."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.kubeconfig, self.is_down = directory, directory / "kubeconfig", False

    def down(self) -> None:
        self.is_down = True


@pytest.fixture
def console() -> Console:
    return Console(file=StringIO())


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """A local cluster that starts nothing."""
    cluster = FakeCluster(tmp_path / "cluster")
    programs = Programs(tmp_path, tmp_path, tmp_path, tmp_path)
    monkeypatch.setattr(local_cluster, "start_cluster", lambda *_: cluster)
    monkeypatch.setattr(local_cluster, "make_programs", lambda *_: programs)
    monkeypatch.setattr(local_cluster, "install", lambda *_: None)
    monkeypatch.setattr(local_cluster, "CHECKOUT", tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "charts/bamboo").mkdir(parents=True)
    return cluster


def homes(tmp_path: Path) -> list[Path]:
    return list(tmp_path.glob("bamboo-quickstart-*"))


def test_everything_is_removed(cluster: FakeCluster, console: Console, tmp_path: Path) -> None:
    stopwatch = Stopwatch()
    with provision(local_cluster.ClusterOptions(), console, stopwatch):
        assert homes(tmp_path)
    assert cluster.is_down
    assert not homes(tmp_path)
    assert list(stopwatch.phases) == ["start the cluster", "install the operator", "clean up"]


def test_the_message_matches_the_nodes(
    console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: dict[str, Any] = {}
    monkeypatch.setattr(
        "bamboo_cli.quickstart.local_cluster.Cluster.up", lambda _, **options: made.update(options)
    )
    local_cluster.start_cluster(local_cluster.ClusterOptions(nodes=5, zones=2), tmp_path, console)
    assert isinstance(console.file, StringIO)
    text = " ".join(console.file.getvalue().split())
    assert text.endswith("5 GPU nodes in 2 zones, and a node for the operator")
    assert [node.gpus for node in made["nodes"]] == [0, 1, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("keep", "error"),
    [(True, KeyboardInterrupt()), (False, KeyboardInterrupt()), (False, CommandError("x"))],
)
def test_everything_is_removed_after_an_error(
    cluster: FakeCluster, console: Console, tmp_path: Path, *, keep: bool, error: BaseException
) -> None:
    with (
        pytest.raises((KeyboardInterrupt, CommandError)),
        provision(local_cluster.ClusterOptions(keep=keep), console, Stopwatch()),
    ):
        raise error
    assert cluster.is_down
    assert not homes(tmp_path)
    assert not (tmp_path / "state/bamboo/quickstart").exists()


def printed(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_a_cluster_whose_operator_does_not_start_can_be_kept(
    cluster: FakeCluster, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise CommandError("helm install failed")

    monkeypatch.setattr(local_cluster, "install", fail)
    with (
        pytest.raises(CommandError, match="helm install failed"),
        provision(local_cluster.ClusterOptions(keep=True), console, Stopwatch()),
    ):
        pass
    assert not cluster.is_down
    assert f"export KUBECONFIG={cluster.kubeconfig}\n" in printed(console)
    assert "  kubectl get pods --all-namespaces\nTo remove it:\n" in printed(console)


def test_a_cluster_without_programs_is_stopped(
    cluster: FakeCluster, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise BinaryError("no helm")

    monkeypatch.setattr(local_cluster, "make_programs", fail)
    with (
        pytest.raises(BinaryError),
        provision(local_cluster.ClusterOptions(keep=True), console, Stopwatch()),
    ):
        pass
    assert cluster.is_down


def test_sigterm_is_like_ctrl_c(cluster: FakeCluster, console: Console) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with (
        pytest.raises(KeyboardInterrupt),
        provision(local_cluster.ClusterOptions(), console, Stopwatch()),
    ):
        os.kill(os.getpid(), signal.SIGTERM)
    assert cluster.is_down
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_kept_cluster_stays(cluster: FakeCluster, console: Console) -> None:
    with provision(local_cluster.ClusterOptions(keep=True), console, Stopwatch()) as local:
        local.keep, local.job = True, ("team", "gpt")
    assert not cluster.is_down
    local_cluster.print_next_steps(local, console)
    assert f"export KUBECONFIG={cluster.kubeconfig}\n" in printed(console)
    assert "kubectl describe bj gpt --namespace team\n" in printed(console)
    assert "bamboo status gpt --namespace team\n" in printed(console)
    assert f"bamboo-devcluster down --dir {cluster.directory}" in printed(console)
    assert f"rm -r {local.checkpoints.parent}" in printed(console)


def test_the_commands_for_a_kept_cluster_can_be_pasted(tmp_path: Path, console: Console) -> None:
    folder = tmp_path / "my files"
    programs = Programs(folder / "bin/kubectl", tmp_path, tmp_path, tmp_path)
    local = local_cluster.LocalCluster(FakeCluster(folder), programs, folder / "checkpoints")
    local_cluster.print_next_steps(local, console)
    lines = printed(console).splitlines()
    exports = [line.strip() for line in lines if "export" in line]
    script = "; ".join([*exports, 'echo "$KUBECONFIG"; echo "$PATH"'])
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    kubeconfig, path = done.stdout.splitlines()
    assert kubeconfig == str(folder / "kubeconfig")
    assert path.startswith(f"{folder}/bin:{Path(sys.executable).parent}:")


def test_a_cluster_that_is_in_use_is_left_alone(
    cluster: FakeCluster, console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise DirectoryError("in use")

    monkeypatch.setattr(local_cluster, "start_cluster", refuse)
    other = tmp_path / "state/bamboo/quickstart/cluster"
    other.mkdir(parents=True)
    with (
        pytest.raises(DirectoryError),
        provision(local_cluster.ClusterOptions(keep=True), console, Stopwatch()),
    ):
        pass
    assert other.exists()
    with (
        pytest.raises(DirectoryError),
        provision(local_cluster.ClusterOptions(), console, Stopwatch()),
    ):
        pass
    assert not homes(tmp_path)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_no_room_for_temporary_files(
    cluster: FakeCluster, console: Console, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(**_: object) -> str:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("tempfile.mkdtemp", fail)
    refused = pytest.raises(CommandError, match=f"{os.strerror(number)}.; free some space")
    with refused, provision(local_cluster.ClusterOptions(), console, Stopwatch()):
        pass


def test_outside_a_checkout(
    console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_cluster, "CHECKOUT", tmp_path)
    refused = pytest.raises(CommandError, match="run this command from a checkout")
    with refused, provision(local_cluster.ClusterOptions(), console, Stopwatch()):
        pass


def test_images_run_this_python() -> None:
    images = ImageMap.parse(local_cluster.image_map())
    for name in ("registry.example/bamboo-operator:0.1.0", "bamboo-agent:latest"):
        image = images.find(name)
        assert image is not None
        assert image.command[0] == sys.executable


def test_nodes_are_spread_over_zones() -> None:
    system, *nodes = local_cluster.gpu_nodes(7, 3)
    assert (system.gpus, system.spot) == (0, False)
    assert [node.zone for node in nodes[:4]] == ["zone-a", "zone-b", "zone-c", "zone-a"]
    assert all(node.gpus == 1 for node in nodes)


class Scripted:
    """A session whose job is seen at these steps and completes, without events."""

    steps: Sequence[int] = ()

    def __init__(self, *_: object) -> None:
        pass

    def run(self, manifest: Any, stopwatch: Stopwatch, act: Any, *, name: str = "") -> Job:
        status = {"phase": "Running", "conditions": [{"type": "Complete", "status": "True"}]}
        metadata = {"namespace": "x", "uid": "u", **manifest["metadata"]}
        job = read_job({**manifest, "metadata": metadata, "status": status})
        for step in self.steps:
            act(Snapshot(job=replace(job, step=step)))
        return job

    def events(self, job: Job) -> list[Any]:
        return []


def script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenario, "Session", Scripted)
    monkeypatch.setattr(scenario, "final_hashes", lambda job: ("a", "b"))


@pytest.mark.parametrize(("losses", "code"), [(True, 1), (False, 0)])
def test_a_run_without_the_scheduled_faults_fails(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, *, losses: bool, code: int
) -> None:
    script(monkeypatch)
    monkeypatch.setattr(Scripted, "steps", range(81))
    console = Console(file=StringIO(), width=400)
    assert scenario.run_quickstart(scenario.Options(losses=losses), console) == code
    assert isinstance(console.file, StringIO)
    assert console.file.getvalue().count("was not injected") == 3 * losses


def test_the_run_is_drawn(
    cluster: FakeCluster, console: Console, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script(monkeypatch)
    monkeypatch.setattr(Scripted, "steps", range(33))
    path = tmp_path / "run.svg"
    assert scenario.run_quickstart(scenario.Options(losses=False, picture=path), console) == 0
    assert "quickstart: 2 pipelines x 4 stages" in path.read_text()


def test_the_last_words_are_the_report_and_the_final_state(
    cluster: FakeCluster, console: Console, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script(monkeypatch)
    monkeypatch.setattr(Scripted, "steps", range(33))
    wide = Console(file=StringIO(), width=400)
    scenario.run_quickstart(scenario.Options(losses=False), wide)
    path = tmp_path / "state/bamboo/quickstart-report.html"
    assert isinstance(wide.file, StringIO)
    final = "The final state is fb8e20fc2e4c3f24: the same on every grid, whatever is lost.\n"
    assert wide.file.getvalue().endswith(f"The report is {path}\n{final}")
    assert "Committed steps" in path.read_text()
    named = scenario.Options(losses=False, report=tmp_path / "missing/x.html")
    with pytest.raises(CommandError, match=r"--report .*missing does not exist; create it"):
        scenario.run_quickstart(named, console)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(CommandError, match=r"cannot be made .*; name a file with --report"):
        scenario.run_quickstart(scenario.Options(losses=False), console)


def test_a_job_without_checkpoints_has_no_final_state(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script(monkeypatch)
    monkeypatch.setattr(Scripted, "steps", range(33))
    manifest = job_file.read_manifest(job_file.EXAMPLE)
    del manifest["spec"]["checkpoint"]
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(manifest))
    wide = Console(file=StringIO(), width=400)
    assert scenario.run_quickstart(scenario.Options(file=file, losses=False), wide) == 0
    assert isinstance(wide.file, StringIO)
    assert "The final state" not in wide.file.getvalue()


def test_a_picture_that_cannot_be_written(
    cluster: FakeCluster, console: Console, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script(monkeypatch)
    monkeypatch.setattr(Scripted, "steps", range(33))
    options = scenario.Options(losses=False, picture=tmp_path / "missing/run.svg")
    with pytest.raises(CommandError, match="missing does not exist; create it"):
        scenario.run_quickstart(options, console)
    with pytest.raises(CommandError, match="--picture needs the name of a file"):
        scenario.run_quickstart(replace(options, picture=tmp_path), console)


def test_a_job_that_takes_too_long_leaves_a_kept_cluster(
    cluster: FakeCluster, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session is real, except for the API server and kubectl."""

    class Api:
        namespace = "default"

        def __init__(self, *_: object) -> None:
            pass

    def take_too_long(*_: object, **__: object) -> Any:
        raise CommandError("the job is Running at step 3 after 5 s")
        yield

    monkeypatch.setattr(session, "Kube", Api)
    monkeypatch.setattr(session, "follow", take_too_long)
    monkeypatch.setattr(Programs, "kubectl", lambda *_, **__: "")
    options = scenario.Options(losses=False, cluster=local_cluster.ClusterOptions(keep=True))
    with pytest.raises(CommandError, match="Running at step 3"):
        scenario.run_quickstart(options, console)
    assert not cluster.is_down
    assert "The cluster stays up. To use it:\n" in printed(console)
    assert "  bamboo status quickstart --namespace default\n" in printed(console)


def test_time_counts_towards_the_phase_seen_before(manifest: dict[str, Any]) -> None:
    job = read_job(manifest)
    clock = [0.0]
    stopwatch = Stopwatch(now=lambda: clock[0])

    def snapshots() -> Any:
        for phase in ("Starting", "Running", "Running", "Complete"):
            clock[0] += 2
            yield Snapshot(job=replace(job, phase=phase))

    assert len(list(session.timed(snapshots(), stopwatch))) == 4
    assert stopwatch.phases == {"place agents": 2.0, "start agents": 2.0, "train": 4.0}
