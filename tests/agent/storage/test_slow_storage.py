"""A storage that is slow or fails: every STOP is answered at once, and training goes on."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from tests.agent.storage.test_checkpoint import FIRST, listed, plan, sealed, start, write

from bamboo_agent.ipc import activity
from bamboo_agent.ipc.shared_progress import SharedProgress
from bamboo_agent.storage import checkpoint, files, reader, saver
from bamboo_agent.storage.checkpoint import Checkpoints
from bamboo_core.model.ids import Fence
from bamboo_core.model.items import Kind
from bamboo_core.protocol.messages import (
    ActivityKind,
    AgentReport,
    BadCheckpoint,
    Finished,
    Listed,
    Sealed,
)
from bamboo_sim.workers import plans
from bamboo_sim.workers.in_process_fleet import InProcessFleet
from bamboo_sim.workers.jobs import tiny_gpt

SECOND = Fence(0, 1, 2)
THIRD = Fence(0, 1, 3)
(ALONE,) = plans.names(1)
DEADLINE_S = 60.0


class Gate:
    """What passes through it waits until it is open."""

    def __init__(self) -> None:
        self.is_reached = threading.Event()
        self._is_open = threading.Event()

    def open(self) -> None:
        self._is_open.set()

    def before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def held(*arguments: Any, **options: Any) -> Any:
            self.is_reached.set()
            assert self._is_open.wait(DEADLINE_S)
            return function(*arguments, **options)

        return held


class Outage:
    """The storage cannot be reached in the given number of attempts to read a file, or to list a
    folder, like this."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        attempts: float,
        pattern: str,
        *,
        method: str = "_find",
    ) -> None:
        self.left = attempts
        self.is_noticed = threading.Event()
        self.read: list[str] = []
        reach = getattr(Checkpoints, method)

        def fail(checkpoints: Checkpoints, path: str) -> Any:
            if Path(path).match(pattern) and self.left > 0:
                self.left -= 1
                self.is_noticed.set()
                raise checkpoint.UnreachableError(f"reaching {path} failed: Connection timed out")
            self.read.append(Path(path).name)
            return reach(checkpoints, path)

        monkeypatch.setattr(Checkpoints, method, fail)


@pytest.fixture
def gate():
    gate = Gate()
    yield gate
    gate.open()


def hold(monkeypatch, gate, method):
    monkeypatch.setattr(Checkpoints, method, gate.before(getattr(Checkpoints, method)))


def said(fleet, kind):
    return [m for _, m in fleet.messages if isinstance(m, kind)]


def alone(tmp_path, *, steps=3, save_every=0, fence=FIRST, manifest=None):
    """A worker that trains: few micro-batches, since the files are what matters."""
    job = tiny_gpt(steps=steps, microbatches=8, uri=f"file://{tmp_path}", save_every=save_every)
    fleet = InProcessFleet(job, (ALONE,))
    plan(fleet, fence, fleet.stop(fence), grid=(1, 1), manifest=manifest)
    return fleet, fleet.workers[ALONE]


def wait_of(worker):
    """Kind, limit and text of what the supervisor sees while the worker waits."""
    shared = SharedProgress.create()
    worker.describe_wait(activity.ActivityWriter(shared, 30.0))
    found = activity.read(shared, {})
    shared.close()
    return found.kind, found.limit_s, found.instruction


def answer(busy):
    (result,) = answers(busy, 1)
    return result


def answers(busy, count):
    found = []
    while len(found) < count:
        assert select.select([busy], [], [], DEADLINE_S)[0]
        found += busy.poll()
    return found


@pytest.fixture
def prompt(monkeypatch):
    """The reader tries again at once."""
    monkeypatch.setattr(reader, "FIRST_PAUSE_S", 1e-3)
    monkeypatch.setattr(reader, "MOST_PAUSE_S", 1e-3)


@pytest.fixture
def rare(monkeypatch):
    """The reader tries again in an hour."""
    monkeypatch.setattr(reader, "FIRST_PAUSE_S", 3600.0)
    monkeypatch.setattr(reader, "MOST_PAUSE_S", 3600.0)


def stopped(fleet, fence=SECOND):
    """Stop the fleet while no file can be reached."""
    (report,) = fleet.stop(fence).values()
    return report


# ---------------------------------------------------------------- listing


def test_a_report_does_not_wait_for_a_listing(tmp_path, monkeypatch, gate):
    hold(monkeypatch, gate, "scan")
    fleet, reports, _ = start(tmp_path, (1, 2))
    assert len(reports) == 2
    fleet.wait(gate.is_reached.is_set)
    assert not said(fleet, Listed)
    gate.open()
    fleet.wait(lambda: listed(fleet) == [(), ()])
    fleet.run_to_end(FIRST)
    fleet.close()


@pytest.fixture
def checkpoints(tmp_path):
    """The checkpoints of the job of these tests, used in the thread of the test."""
    return Checkpoints(f"file://{tmp_path}", "uid")


def asked(tmp_path):
    """A worker that is asked for a list."""
    fleet = InProcessFleet(tiny_gpt(uri=f"file://{tmp_path}"), (ALONE,))
    fleet.stop(SECOND, want_manifests=True)
    return fleet, fleet.workers[ALONE]


def away(monkeypatch, attempts=float("inf")):
    """The job's folder cannot be listed."""
    return Outage(monkeypatch, attempts, "uid", method="_list")


def test_a_listing_that_fails_is_no_answer_and_ends_with_the_worker(
    tmp_path, monkeypatch, caplog, rare
):
    outage = away(monkeypatch)
    fleet, _ = asked(tmp_path)
    fleet.wait(outage.is_noticed.is_set)
    fleet.close()
    assert not said(fleet, Listed)
    assert not said(fleet, BadCheckpoint)
    assert "timed out; the listing waits until the storage can be reached" in caplog.text


def test_a_listing_waits_until_the_storage_can_be_reached(
    tmp_path, monkeypatch, caplog, checkpoints, prompt
):
    good, _ = write(checkpoints)
    outage = away(monkeypatch, 9)
    fleet, worker = asked(tmp_path)
    fleet.wait(lambda: not worker.is_storage_busy)
    fleet.close()
    assert outage.left == 0
    assert said(fleet, Listed) == [Listed((good,), SECOND)]
    assert caplog.text.count("Connection timed out") == 1


def test_a_checkpoint_that_can_be_reached_later_is_in_the_list(
    tmp_path, monkeypatch, caplog, checkpoints, prompt
):
    both = tuple(write(checkpoints, step=step)[0] for step in (1, 2))
    outage = Outage(monkeypatch, reader.PARTIAL_TRIES - 1, "step-00000002/manifest.json")
    fleet, worker = asked(tmp_path)
    fleet.wait(lambda: not worker.is_storage_busy)
    fleet.close()
    assert outage.left == 0
    *partial, whole = said(fleet, Listed)
    assert whole == Listed(both, SECOND)
    assert [m.manifests for m in partial] == [both[:1]] * (reader.PARTIAL_TRIES - 1)
    assert all(m.is_partial and "step-00000002/manifest.json" in m.error for m in partial)
    assert caplog.text.count("Connection timed out") == 1


def test_a_checkpoint_that_cannot_be_reached_makes_the_list_partial(
    tmp_path, monkeypatch, checkpoints, prompt
):
    """Also after an outage of the whole storage there is time for it to come back."""
    write(checkpoints, step=1)
    good, _ = write(checkpoints, step=2)
    away(monkeypatch, 9)
    outage = Outage(monkeypatch, 99, "step-00000001/manifest.json")
    fleet, worker = asked(tmp_path)
    fleet.wait(lambda: not worker.is_storage_busy)
    fleet.close()
    assert outage.left == 99 - reader.PARTIAL_TRIES
    (partial,) = set(said(fleet, Listed))
    assert (partial.manifests, partial.fence, partial.is_partial) == ((good,), SECOND, True)
    assert "step-00000001/manifest.json" in partial.error
    assert len(said(fleet, Listed)) == reader.PARTIAL_TRIES


@pytest.fixture
def listing(monkeypatch, checkpoints, rare):
    """(reader, outage, manifest): a listing for FIRST has failed, and is to be tried in an hour."""
    manifest, _ = write(checkpoints)
    outage = away(monkeypatch)
    busy = reader.Reader(checkpoints)
    busy.begin_listing(FIRST)
    assert outage.is_noticed.wait(DEADLINE_S)
    yield busy, outage, manifest
    busy.close()


def test_a_load_gives_a_listing_up(listing):
    busy, _, manifest = listing
    busy.read(manifest, (0, 1), 0)
    assert len(answer(busy).records) == 1
    assert not busy.is_busy


def test_a_newer_ask_gives_up_the_one_before_it(listing):
    busy, outage, manifest = listing
    outage.left = 0
    busy.begin_listing(SECOND)
    assert answer(busy) == reader.Listing((manifest,), (), SECOND, "")
    assert not busy.is_busy


def test_a_scan_that_is_under_way_counts_and_one_that_has_not_begun_is_left_out(
    monkeypatch, gate, checkpoints
):
    checkpoints.probe()
    hold(monkeypatch, gate, "scan")
    busy = reader.Reader(checkpoints)
    busy.begin_listing(FIRST)
    assert gate.is_reached.wait(DEADLINE_S)
    busy.begin_listing(SECOND)
    busy.begin_listing(THIRD)
    gate.open()
    assert [listing.fence for listing in answers(busy, 2)] == [FIRST, THIRD]
    assert not busy.is_busy
    busy.close()


def test_a_listing_that_keeps_failing_ends_with_the_reader(monkeypatch, checkpoints, rare):
    outage = away(monkeypatch)
    busy = reader.Reader(checkpoints)
    busy.begin_listing(FIRST)
    assert outage.is_noticed.wait(DEADLINE_S)
    assert "reader" in {thread.name for thread in threading.enumerate()}
    busy.close()
    assert "reader" not in {thread.name for thread in threading.enumerate()}


# ---------------------------------------------------------------- sealing and pruning


def test_finished_waits_for_the_seal_and_a_stop_does_not(tmp_path, monkeypatch, gate):
    hold(monkeypatch, gate, "seal")
    fleet, worker = alone(tmp_path)
    fleet.wait(lambda: gate.is_reached.is_set() and worker.executor.current is None)
    assert not worker.turn()
    assert not said(fleet, Finished)
    assert wait_of(worker) == (ActivityKind.LOADING, 0.0, "the end waits for storage")
    plan(fleet, SECOND, {ALONE: stopped(fleet)}, grid=(1, 1))
    gate.open()
    fleet.run_to_end(SECOND)
    fleet.close()
    kinds = [type(m) for _, m in fleet.messages]
    assert kinds.index(Sealed) < kinds.index(Finished)
    assert [m.fence for m in said(fleet, Finished)] == [SECOND]
    assert {m.step for m in sealed(fleet)} == {3}


def test_a_seal_of_an_attempt_that_is_over_counts_for_nothing(tmp_path, monkeypatch, gate):
    hold(monkeypatch, gate, "seal")
    fleet, worker = alone(tmp_path)
    fleet.wait(gate.is_reached.is_set)
    stopped(fleet, Fence(1, 1, 2))
    gate.open()
    fleet.wait(lambda: not worker.is_storage_busy)
    assert not sealed(fleet)
    assert not said(fleet, Finished)
    fleet.close()


def test_files_of_an_attempt_that_is_over_are_not_written(tmp_path, monkeypatch, gate):
    hold(monkeypatch, gate, "write_layer")
    fleet, worker = alone(tmp_path, save_every=1)
    fleet.wait(lambda: worker.waits_for_storage)
    report = stopped(fleet, Fence(1, 1, 2))
    assert not report.items
    gate.open()
    fleet.wait(lambda: not worker.is_storage_busy)
    assert len(list(tmp_path.rglob("*.safetensors"))) == 1  # it was being written
    fleet.close()


def test_a_checkpoint_that_cannot_be_pruned_stays_and_the_job_ends(tmp_path, monkeypatch, caplog):
    fleet, worker = alone(tmp_path, steps=4, save_every=1)

    def fail(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(worker._storage._saver._checkpoints._fs, "rm", fail)
    monkeypatch.setattr(saver, "MOST_UNWRITTEN", 4)  # none is given up on a busy machine
    fleet.run_to_end(FIRST)
    fleet.close()
    assert [m.step for m in sealed(fleet)] == [1, 2, 3, 4]
    assert not said(fleet, BadCheckpoint)
    assert "an old checkpoint stays: removing" in caplog.text


def test_a_manifest_that_cannot_be_written_is_reported(tmp_path, monkeypatch):
    write = Checkpoints._write

    def fail(self: Checkpoints, path: str, data: bytes) -> None:
        if path.endswith(checkpoint.MANIFEST):
            raise checkpoint.CheckpointError(f"writing {path} failed: full", cause="disk full")
        write(self, path, data)

    monkeypatch.setattr(Checkpoints, "_write", fail)
    fleet, _ = alone(tmp_path)
    fleet.run_to_end(FIRST)
    fleet.close()
    (complaint,) = said(fleet, BadCheckpoint)
    assert (complaint.step, complaint.cause) == (3, f"agent {ALONE}: disk full")


# ---------------------------------------------------------------- loading


@pytest.fixture
def manifest(tmp_path):
    fleet, _ = alone(tmp_path, save_every=2)
    fleet.run_to_end(FIRST)
    fleet.close()
    return sealed(fleet)[0]


def test_a_load_waits_without_blocking_and_a_stop_gives_it_up(
    tmp_path, monkeypatch, gate, manifest
):
    assert manifest.step == 2
    hold(monkeypatch, gate, "_read_file")
    fence = Fence(1, 1, 1)
    fleet, worker = alone(tmp_path, fence=fence, manifest=manifest)
    fleet.wait(gate.is_reached.is_set)
    assert worker.waits_for_storage
    assert not worker.turn()
    assert wait_of(worker) == (ActivityKind.LOADING, 0.0, "LOAD[0:6] @2 waits for storage")
    again = Fence(1, 1, 2)
    report = stopped(fleet, again)
    assert not report.versions
    assert not worker.backend.layers
    assert not worker.waits_for_storage

    plan(fleet, again, {ALONE: report}, grid=(1, 1), manifest=manifest)
    assert worker.waits_for_storage
    gate.open()
    (ready, _, _) = select.select(worker.sources, [], [], DEADLINE_S)
    assert ready
    fleet.run_to_end(again)
    fleet.close()
    assert [m.commit.step for _, m in fleet.messages if hasattr(m, "commit")] == [2, 3]


def test_a_load_that_fails_changes_no_layer(tmp_path, manifest):
    last = max(Path(manifest.path).parent.glob("*.safetensors"))
    last.write_bytes(last.read_bytes()[:-1])
    fleet, worker = alone(tmp_path, fence=Fence(1, 1, 1), manifest=manifest)
    fleet.wait(lambda: said(fleet, BadCheckpoint))
    assert not worker.backend.layers
    assert not worker.waits_for_storage
    assert not worker.turn()
    fleet.close()


@pytest.mark.parametrize("pattern", ["manifest.json", "layer-0002.*"])
def test_a_load_waits_until_the_storage_can_be_reached(
    tmp_path, monkeypatch, caplog, manifest, pattern
):
    """That it cannot says nothing about the checkpoint. What has been read is not read again."""
    monkeypatch.setattr(reader, "FIRST_PAUSE_S", 1e-3)
    outage = Outage(monkeypatch, 3, pattern)
    fence = Fence(1, 1, 1)
    fleet, _ = alone(tmp_path, fence=fence, manifest=manifest)
    fleet.run_to_end(fence)
    fleet.close()
    assert outage.left == 0
    assert not said(fleet, BadCheckpoint)
    layers = [name for name in outage.read if name.startswith("layer-")]
    assert layers == [f"layer-{i:04d}.safetensors" for i in range(6)]
    assert caplog.text.count("Connection timed out") == 1


@pytest.fixture
def unreachable(monkeypatch, rare):
    """For ever."""
    return Outage(monkeypatch, float("inf"), "*")


def test_a_stop_ends_the_attempts_to_reach_the_storage(tmp_path, manifest, unreachable):
    fleet, worker = alone(tmp_path, fence=Fence(1, 1, 1), manifest=manifest)
    fleet.wait(unreachable.is_noticed.is_set)
    assert wait_of(worker) == (ActivityKind.LOADING, 0.0, "LOAD[0:6] @2 waits for storage")
    stopped(fleet, Fence(1, 1, 2))
    fleet.wait(lambda: not worker.is_storage_busy)
    assert not said(fleet, BadCheckpoint)
    fleet.close()


def test_pauses_are_short_again_after_a_layer_has_been_read(checkpoints, monkeypatch, manifest):
    monkeypatch.setattr(reader, "pauses", lambda: iter([0.0, 3600.0]))
    find, tried = Checkpoints._find, set()

    def fail_once(checkpoints: Checkpoints, path: str) -> bytes | None:
        if Path(path).match("layer-000[1-3].*") and path not in tried:
            tried.add(path)
            raise checkpoint.UnreachableError("Connection timed out")
        return find(checkpoints, path)

    monkeypatch.setattr(Checkpoints, "_find", fail_once)
    busy = reader.Reader(checkpoints)
    busy.read(manifest, (0, 6), 0)
    *troubles, read = answers(busy, 3)
    assert len(read.records) == 6
    assert [trouble.text for trouble in troubles] == ["Connection timed out", ""]
    assert len(tried) == 3
    busy.close()


def test_a_reading_is_given_up_for_the_next_one(checkpoints, manifest, unreachable):
    busy = reader.Reader(checkpoints)
    busy.read(manifest, (0, 1), 0)
    assert unreachable.is_noticed.wait(DEADLINE_S)
    unreachable.left = 0
    busy.read(manifest, (1, 2), 0)
    read = answer(busy)
    assert read.reading.layers == (1, 2)
    assert read.error is None
    busy.close()


def test_a_worker_that_closes_does_not_wait_for_the_storage(tmp_path, manifest, unreachable):
    fleet, _ = alone(tmp_path, fence=Fence(1, 1, 1), manifest=manifest)
    fleet.wait(unreachable.is_noticed.is_set)
    fleet.close()


def test_the_pauses_between_attempts_are_bounded():
    assert list(islice(reader.pauses(), 7)) == [0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0]


# ---------------------------------------------------------------- writing


def test_a_checkpoint_is_given_up_while_two_others_are_being_written(tmp_path, monkeypatch, gate):
    hold(monkeypatch, gate, "write_layer")
    fleet, worker = alone(tmp_path, steps=5, save_every=1)
    fleet.wait(lambda: worker.waits_for_storage)
    complaints = said(fleet, BadCheckpoint)
    assert [m.step for m in complaints] == [3, 4]
    (cause,) = {m.cause for m in complaints}
    assert cause == (
        f"agent {ALONE}: the storage is too slow for spec.checkpoint.everySteps 1: 2 checkpoints "
        "are still being written; raise everySteps, or use a faster storage"
    )
    assert not worker.turn()  # the last one waits
    assert wait_of(worker) == (ActivityKind.LOADING, 0.0, "SAVE[0:6] @5 waits for storage")
    gate.open()
    fleet.run_to_end(FIRST)
    fleet.close()
    assert [m.step for m in sealed(fleet)] == [1, 2, 5]


def test_a_stop_does_not_wait_for_room_for_the_last_checkpoint(tmp_path, monkeypatch, gate):
    hold(monkeypatch, gate, "write_layer")
    fleet, worker = alone(tmp_path, save_every=1)
    fleet.wait(lambda: worker.waits_for_storage)
    report = stopped(fleet)
    assert not any(item.kind is Kind.FILE for item in report.items)
    gate.open()
    plan(fleet, SECOND, {ALONE: report}, grid=(1, 1))
    fleet.run_to_end(SECOND)
    fleet.close()
    assert [m.step for m in sealed(fleet)] == [3]


def test_a_file_that_could_not_be_written_is_in_no_report(tmp_path, monkeypatch):
    """So the next plan writes it again, if it continues at that step."""
    write, is_full = Checkpoints.write_layer, True

    def fail(self: Checkpoints, **options: Any) -> Any:
        if is_full:
            raise checkpoint.CheckpointError("full", cause="disk full")
        return write(self, **options)

    monkeypatch.setattr(Checkpoints, "write_layer", fail)
    fleet, _ = alone(tmp_path)
    fleet.run_to_end(FIRST)
    assert [m.cause for m in said(fleet, BadCheckpoint)] == [f"agent {ALONE}: disk full"]
    report = stopped(fleet)
    assert not any(item.kind is Kind.FILE for item in report.items)
    is_full = False
    plan(fleet, SECOND, {ALONE: report}, grid=(1, 1))
    fleet.run_to_end(SECOND)
    fleet.close()
    assert [m.step for m in sealed(fleet)] == [3]


def test_an_error_of_the_stores_own_type_ends_no_training(tmp_path, monkeypatch):
    class StoreError(Exception):
        pass

    def fail(*_: object, **__: object) -> None:
        raise StoreError("503 slow down")

    fleet, worker = alone(tmp_path)
    monkeypatch.setattr(worker._storage._saver._checkpoints._fs, "open", fail)
    fleet.run_to_end(FIRST)
    fleet.close()
    (complaint,) = said(fleet, BadCheckpoint)
    assert "failed: StoreError: 503 slow down; training goes on" in complaint.message


# ---------------------------------------------------------------- threads


def test_only_the_storage_threads_touch_the_storage(tmp_path, monkeypatch):
    callers: set[str] = set()
    find = files.fsspec.core.url_to_fs

    def watched(uri: str) -> Any:
        fs, root = find(uri)
        for name in ("open", "ls", "mv", "rm", "makedirs", "exists"):
            monkeypatch.setattr(fs, name, note(getattr(fs, name)))
        return fs, root

    def note(function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any, **options: Any) -> Any:
            callers.add(threading.current_thread().name)
            return function(*arguments, **options)

        return noted

    monkeypatch.setattr(files.fsspec.core, "url_to_fs", watched)
    fleet, _ = alone(tmp_path, steps=4, save_every=1)
    fleet.run_to_end(FIRST)
    newest = max(sealed(fleet), key=lambda m: m.step)
    again = Fence(1, 1, 2)
    reports = fleet.stop(again, want_manifests=True)
    plan(fleet, again, reports, grid=(1, 1), manifest=newest)
    fleet.run_to_end(again)
    fleet.close()
    assert callers == {"saver", "sealer", "reader"}
    assert len(said(fleet, AgentReport)) == 2
