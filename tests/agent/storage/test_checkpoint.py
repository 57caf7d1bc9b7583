"""Checkpoints: written whole or not at all, refused when altered, restored into any grid."""

from __future__ import annotations

import contextlib
import resource
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.agent.worker.test_equality import assert_equal

from bamboo_agent.payloads.kinds import LayerRecord
from bamboo_agent.storage import files, saver
from bamboo_agent.storage.checkpoint import (
    CheckpointError,
    Checkpoints,
    Header,
    UnreachableError,
)
from bamboo_core.model.ids import Fence
from bamboo_core.model.items import Kind
from bamboo_core.model.numerics import BatchShape
from bamboo_core.protocol.messages import BadCheckpoint, Listed, Progress, Sealed
from bamboo_sim.workers import plans, reference
from bamboo_sim.workers.in_process_fleet import InProcessFleet
from bamboo_sim.workers.jobs import tiny_gpt
from bamboo_sim.workers.process_fleet import ProcessFleet

BATCH = BatchShape(reference.G, 2, 4)
FIRST = Fence(0, 1, 1)
RECORD = LayerRecord({"param/w": torch.arange(4.0), "optim/w/step": torch.tensor(3.0)}, '{"a": 1}')


@pytest.fixture
def checkpoints(tmp_path):
    return Checkpoints(f"file://{tmp_path}", "uid")


def counted(asked, name, function):
    def call(*arguments, **options):
        asked.append(name)
        return function(*arguments, **options)

    return call


def write(checkpoints, *, attempt=0, step=3, layers=2):
    files = [
        checkpoints.write_layer(attempt=attempt, step=step, layer=x, record=RECORD)
        for x in range(layers)
    ]
    return checkpoints.seal(Header(attempt, step, 7, BATCH), files), files


def test_a_layer_comes_back_as_it_was(checkpoints):
    manifest, _ = write(checkpoints)
    found = checkpoints.read_layer(manifest, 1)
    assert found.extra == RECORD.extra
    assert found.tensors.keys() == RECORD.tensors.keys()
    assert all(torch.equal(found.tensors[n], t) for n, t in RECORD.tensors.items())


def test_a_scan_finds_complete_checkpoints_in_order_and_no_temporary_files(checkpoints, tmp_path):
    manifests = [write(checkpoints, attempt=a, step=s)[0] for a, s in ((0, 3), (0, 12), (1, 5))]
    checkpoints.write_layer(attempt=1, step=9, layer=0, record=RECORD)  # never sealed
    assert checkpoints.scan() == (manifests, [], "")
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_job_sees_its_own_checkpoints_only(checkpoints, tmp_path):
    write(checkpoints)
    other = Checkpoints(str(tmp_path), "another uid")
    assert other.scan() == ([], [], f"{tmp_path}/another uid is not there")
    other.probe()
    assert other.scan() == ([], [], "")


def test_a_torn_file_is_found_by_the_scan(checkpoints):
    good, _ = write(checkpoints, step=1)
    _, files = write(checkpoints, step=2)
    path = Path(files[1].path)
    path.write_bytes(path.read_bytes()[:-3])
    found, (error,), _ = checkpoints.scan()
    assert found == [good]
    assert (error.attempt, error.step) == (0, 2)
    assert str(path) in str(error)
    assert f"expected {files[1].num_bytes} bytes" in str(error)


def test_a_missing_file_makes_a_checkpoint_unreachable(checkpoints):
    _, files = write(checkpoints)
    Path(files[0].path).unlink()
    assert checkpoints.scan() == ([], [], f"{files[0].path} is not there")


def test_a_manifest_that_is_none_is_found_by_the_scan(checkpoints):
    manifest, _ = write(checkpoints)
    for text, complaint in (("{", "is no manifest"), ('{"format": 99}', "has format 99")):
        Path(manifest.path).write_text(text)
        assert complaint in str(checkpoints.scan().bad[0])


def test_a_scan_asks_for_each_folder_once_and_not_for_each_file(checkpoints, monkeypatch):
    """On NFS every question about a single file is a round trip."""
    asked: list[str] = []
    fs = checkpoints._fs
    for name in ("ls", "open", "exists", "size", "glob", "find"):
        monkeypatch.setattr(fs, name, counted(asked, name, getattr(fs, name)))
    for step in (1, 2, 3):
        write(checkpoints, step=step, layers=20)
    asked.clear()
    assert len(checkpoints.scan().good) == 3
    assert sorted(asked) == ["ls"] * (1 + 1 + 3) + ["open"] * 3


def test_a_checkpoint_that_is_removed_during_a_scan_is_not_torn(checkpoints, monkeypatch):
    write(checkpoints, step=1)
    listing = Checkpoints._list

    def late(self, folder):
        if folder.endswith("step-00000001"):
            shutil.rmtree(folder)
        return listing(self, folder)

    monkeypatch.setattr(Checkpoints, "_list", late)
    assert checkpoints.scan() == ([], [], "")


def test_a_checkpoint_that_cannot_be_reached_is_neither_good_nor_torn(checkpoints, monkeypatch):
    """An error of the storage must not make the operator pass over a checkpoint for ever."""
    bad, _ = write(checkpoints, step=1)
    good, _ = write(checkpoints, step=2)
    opened = checkpoints._fs.open

    def fail(path, *arguments, **options):
        if path == bad.path:
            raise OSError(5, "Input/output error")
        return opened(path, *arguments, **options)

    monkeypatch.setattr(checkpoints._fs, "open", fail)
    found = checkpoints.scan()
    assert (found.good, found.bad, found.is_partial) == ([good], [], True)
    assert bad.path in found.unreachable


def test_an_altered_file_is_refused_when_it_is_read(checkpoints):
    manifest, files = write(checkpoints)
    path = Path(files[0].path)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"layer-0000.* has been altered"):
        checkpoints.read_layer(manifest, 0)
    path.write_bytes(data[:-1])
    with pytest.raises(CheckpointError, match=r"layer-0000.* is torn"):
        checkpoints.read_layer(manifest, 0)


def test_an_altered_manifest_is_refused(checkpoints):
    manifest, _ = write(checkpoints)
    with pytest.raises(CheckpointError, match="has been altered"):
        checkpoints.read_layer(replace(manifest, digest="0"), 0)
    with pytest.raises(CheckpointError, match="has 2 layers, none is layer 2"):
        checkpoints.read_layer(manifest, 2)
    with pytest.raises(UnreachableError, match=r"reading .* failed: No such file"):
        checkpoints.read_layer(replace(manifest, path="/nowhere"), 0)


def test_all_of_a_checkpoint_is_checked(checkpoints):
    manifest, files = write(checkpoints)
    checkpoints.check(manifest)
    path = Path(files[1].path)
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(CheckpointError, match=r"layer-0001.* has been altered"):
        checkpoints.check(manifest)
    path.unlink()
    with pytest.raises(UnreachableError, match=r"layer-0001.* failed: No such file"):
        checkpoints.check(manifest)


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match=r"writing .*layer-0000.* failed: \w+"):
        write(Checkpoints(f"{tmp_path}/file", "uid"))


def test_a_probe_says_whether_checkpoints_can_be_written(checkpoints, tmp_path):
    checkpoints.probe()
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError) as refusal:
        Checkpoints(f"{tmp_path}/file", "uid").probe()
    assert refusal.value.cause == f"writing below {tmp_path}/file/uid failed: Not a directory"


def test_an_unknown_address_gets_one_sentence():
    with pytest.raises(CheckpointError, match=r"checkpoint\.uri 'nosuch://x' cannot be used"):
        Checkpoints("nosuch://x", "uid")


@contextlib.contextmanager
def full_disk():
    """Files may not grow beyond 100 bytes: the same path as a full disk.

    For as few lines as can be: pytest's own output may go to a file, too.
    """
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_full_disk_is_one_sentence_and_leaves_nothing_behind(checkpoints, tmp_path):
    with pytest.raises(CheckpointError, match="failed: File too large"), full_disk():
        write(checkpoints)
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


# ---------------------------------------------------------------- in a fleet


def plan(fleet, fence, reports, *, grid, **more):
    decision = plans.decide(
        plans.grid_of(fleet.job, pipelines=grid[0], stages=grid[1]),
        fence=fence,
        layers=fleet.layers,
        reports=reports,
        batch=replace(BATCH, microbatches=fleet.job.training.microbatches),
        validation_samples=fleet.validation_samples,
        **more,
    )
    fleet.install(decision)
    return decision.plan


def start_in(uri, grid):
    """A fleet that saves each step there."""
    fleet = InProcessFleet(tiny_gpt(uri=uri, save_every=1, keep=9), plans.names(grid[0] * grid[1]))
    plan(fleet, FIRST, fleet.stop(FIRST), grid=grid)
    return fleet


def start(tmp_path, grid, *, fence=FIRST, manifest=None, save_every=1):
    job = tiny_gpt(uri=f"file://{tmp_path}", save_every=save_every, keep=9)
    fleet = InProcessFleet(job, plans.names(grid[0] * grid[1]))
    reports = fleet.stop(fence, want_manifests=True)
    return fleet, reports, plan(fleet, fence, reports, grid=grid, manifest=manifest)


def sealed(fleet):
    return [m.manifest for _, m in fleet.messages if isinstance(m, Sealed)]


def listed(fleet):
    return [m.manifests for _, m in fleet.messages if isinstance(m, Listed)]


def test_suspend_and_resume_in_another_grid_changes_no_bit(tmp_path):
    first, _, before = start(tmp_path, (2, 2), save_every=0)
    while not any(isinstance(m, Progress) for _, m in first.messages):
        first.turn()
    suspend = Fence(0, 1, 2)
    plan(first, suspend, first.stop(suspend), grid=(2, 2), before=before, is_last=True)
    first.run_to_end(suspend)
    (manifest,) = sealed(first)
    first.close()

    fence = Fence(1, 1, 3)
    second = InProcessFleet(first.job, plans.names(4))
    reports = second.stop(fence, want_manifests=True)
    second.wait(lambda: len(listed(second)) == 4)
    assert set(listed(second)) == {(manifest,)}
    plan(second, fence, reports, grid=(1, 4), manifest=manifest)
    second.run_to_end(fence)
    second.close()
    history = {r.step: r for r in first.history()} | {r.step: r for r in second.history()}
    records = [history[step] for step in sorted(history)]
    validation = [r.step for r in records if r.validation_loss is not None]
    assert validation == [0, 2, reference.STEPS]
    assert_equal(records, second.weights(), leaf_size=2, chunks=4)


def test_a_torn_checkpoint_is_refused_and_the_one_before_it_is_used(tmp_path):
    first, _, _ = start(tmp_path, (1, 2))
    first.run_to_end(FIRST)
    first.close()
    older, newest = sorted(sealed(first), key=lambda m: m.step)[-2:]
    torn = Path(newest.path).parent / "layer-0002.safetensors"
    data = bytearray(torn.read_bytes())
    data[len(data) // 2] ^= 255
    torn.write_bytes(data)

    fleet, _, _ = start(tmp_path, (2, 1), fence=Fence(1, 1, 2), manifest=newest)
    while fleet.turn():
        pass
    complaint = next(m for _, m in fleet.messages if isinstance(m, BadCheckpoint))
    assert complaint.step == newest.step
    assert str(torn) in complaint.message
    assert complaint.fence == Fence(1, 1, 2)

    fence = Fence(2, 1, 3)
    plan(fleet, fence, fleet.stop(fence), grid=(2, 1), manifest=older)
    fleet.run_to_end(fence)
    fleet.close()
    outcome = reference.train(leaf_size=2, chunks=4)
    weights = fleet.weights()
    assert all(torch.equal(weights[name], outcome.state[name]) for name in outcome.state)


def test_files_of_a_torn_checkpoint_are_in_no_report_after_the_listing(tmp_path):
    fleet, _, _ = start(tmp_path, (1, 2))
    fleet.run_to_end(FIRST)
    newest = max(sealed(fleet), key=lambda m: m.step)

    def files(fence):
        reports = fleet.stop(fence, want_manifests=True).values()
        items = {i for r in reports for i in r.items if i.kind is Kind.FILE}
        return {i.lo for i in items if i.step == newest.step}

    layers = set(range(fleet.layers))
    (Path(newest.path).parent / "layer-0002.safetensors").write_bytes(b"short")
    fleet.messages.clear()
    assert files(Fence(0, 1, 2)) == layers  # no report waits for a listing
    fleet.wait(lambda: len(listed(fleet)) == 2)
    assert all(newest not in found for found in listed(fleet))
    (complaint,) = {m.step for _, m in fleet.messages if isinstance(m, BadCheckpoint)}
    assert complaint == newest.step
    assert files(Fence(0, 1, 3)) == set()  # all of them are written again
    fleet.close()


def test_training_goes_on_when_a_checkpoint_cannot_be_written(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(saver, "MOST_UNWRITTEN", 4)  # none is given up on a busy machine
    (tmp_path / "blocked").write_text("in the way")
    fleet, _, _ = start(tmp_path / "blocked", (1, 2))
    fleet.run_to_end(FIRST)
    fleet.close()
    complaints = [m for _, m in fleet.messages if isinstance(m, BadCheckpoint)]
    assert {m.step for m in complaints} == {1, 2, 3}
    assert all("training goes on" in m.message for m in complaints)
    (cause,) = {m.cause for m in complaints}
    assert cause.startswith(f"agent {plans.names(2)[0]}: writing below {tmp_path}/blocked/uid")
    lines = [r.getMessage() for r in caplog.records if r.name == "bamboo_agent.storage.saver"]
    assert sum("of step 1 is not saved: writing" in line for line in lines) == 2  # agents
    assert all(
        r.levelname == "ERROR" for r in caplog.records if r.name == "bamboo_agent.storage.saver"
    )
    assert not sealed(fleet)
    assert_equal(fleet.history(), fleet.weights(), leaf_size=2, chunks=4)


def test_a_worker_tries_the_folder_before_it_is_ready(tmp_path):
    (tmp_path / "blocked").write_text("in the way")
    (agent,) = plans.names(1)
    fleet = ProcessFleet(tiny_gpt(uri=f"file://{tmp_path}/blocked"), (agent,))
    found = fleet.ready().storage_error
    fleet.close()
    assert found == f"agent {agent}: writing below {tmp_path}/blocked/uid failed: Not a directory"


def test_each_piece_of_a_file_is_told(tmp_path, monkeypatch):
    """A file that takes long is no storage that stands still."""
    monkeypatch.setattr(files, "_PIECE_BYTES", 100)
    told = []
    checkpoints = Checkpoints(str(tmp_path), "uid", on_traffic=lambda: told.append(1))
    path = f"{checkpoints.folder(0, 1)}/file"
    checkpoints._write(path, bytes(range(250)))
    assert len(told) == 4  # three pieces, and once all is on the disk
    assert checkpoints._read(path) == bytes(range(250))
    assert len(told) == 7
