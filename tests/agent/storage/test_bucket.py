"""Checkpoints in a bucket of a real S3 server: whole or not there, sealed once, cleaned up."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import threading
from dataclasses import replace
from datetime import timedelta

import fsspec
import pytest
import torch
from tests.agent.conftest import use
from tests.agent.storage.test_checkpoint import BATCH, RECORD, listed, plan, sealed, write
from tests.agent.worker.test_equality import assert_equal

from bamboo_agent.payloads.kinds import LayerRecord
from bamboo_agent.storage import files, objects
from bamboo_agent.storage.checkpoint import CheckpointError, Checkpoints, Facts, Header
from bamboo_core.model.ids import Fence
from bamboo_devcluster import object_store
from bamboo_sim.workers import plans, reference
from bamboo_sim.workers.in_process_fleet import InProcessFleet
from bamboo_sim.workers.jobs import tiny_gpt

PART = 5 << 20  # the least that S3 takes
LARGE = LayerRecord({"param/w": torch.arange(3_000_000.0)}, "{}")  # three parts


@pytest.fixture
def checkpoints(bucket, monkeypatch):
    monkeypatch.setattr(files, "_PIECE_BYTES", PART)
    found = Checkpoints(f"{bucket}/some/prefix", "uid")
    found.probe()
    return found


def s3():
    return fsspec.filesystem("s3", use_listings_cache=False)


def objects_in(bucket):
    return sorted(name.partition("/uid/")[2] for name in s3().find(bucket))


def uploads(bucket):
    found = s3().call_s3("list_multipart_uploads", Bucket=bucket.removeprefix("s3://"))
    return sorted(upload["Key"] for upload in found.get("Uploads", []))


def begin_upload(bucket, key):
    s3().call_s3("create_multipart_upload", Bucket=bucket.removeprefix("s3://"), Key=key)


def test_a_layer_comes_back_as_it_was_in_one_part_or_many(checkpoints, bucket):
    files = [
        checkpoints.write_layer(attempt=0, step=3, layer=x, record=record)
        for x, record in enumerate((RECORD, LARGE))
    ]
    manifest = checkpoints.seal(Header(0, 3, 7, BATCH), files)
    assert manifest.path.startswith(f"{bucket}/some/prefix/uid/attempt-0000/")
    checkpoints.check(manifest)
    for found, given in zip(
        checkpoints.read_layers(manifest, [0, 1]), (RECORD, LARGE), strict=True
    ):
        assert found.extra == given.extra
        assert all(torch.equal(found.tensors[n], t) for n, t in given.tensors.items())
    assert checkpoints.scan() == ([manifest], [], "")
    assert uploads(bucket) == []


def test_a_file_has_the_bytes_that_it_has_on_a_disk(checkpoints, tmp_path):
    (ours, _), (theirs, _) = write(checkpoints), write(Checkpoints(str(tmp_path), "uid"))
    assert checkpoints.hashes(ours) == Checkpoints(str(tmp_path), "uid").hashes(theirs)


def test_nothing_is_written_that_is_not_kept(checkpoints, bucket):
    write(checkpoints)
    folder = "attempt-0000/step-00000003"
    files = [f"{folder}/layer-000{x}.safetensors" for x in (0, 1)]
    assert objects_in(bucket) == [*files, f"{folder}/manifest.json", "made"]


@pytest.mark.parametrize("is_trusted", [True, False])
def test_over_https_from_a_server_that_is_trusted(tmp_path, monkeypatch, is_trusted):
    monkeypatch.setattr(files, "_PIECE_BYTES", PART)
    with object_store.running(tmp_path / "s3", is_secure=True) as server:
        use(monkeypatch, server.environment)
        found = Checkpoints(f"{server.make_bucket('secure')}/p", "uid")
        if is_trusted:
            file = found.write_layer(attempt=0, step=3, layer=0, record=LARGE)
            manifest = found.seal(Header(0, 3, 7, BATCH), [file])
            (read,) = found.read_layers(manifest, [0])
            assert torch.equal(read.tensors["param/w"], LARGE.tensors["param/w"])
            return
        monkeypatch.delenv("AWS_CA_BUNDLE")
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        with pytest.raises(CheckpointError, match="SSL"):
            Checkpoints("s3://secure/p", "uid").probe()


def test_a_part_that_is_refused_is_tried_again_whole(bucket, checkpoints, monkeypatch):
    """The server gets the same bytes a second time."""
    client, failed = fsspec.filesystem("s3", **objects.options("s3")).s3, []

    def fail_once(params, **_):
        if not failed and params["PartNumber"] == 2:
            failed.append(len(params["Body"]))
            raise TimeoutError("no answer")

    name = "provide-client-params.s3.UploadPart"
    client.meta.events.register(name, fail_once)
    file = checkpoints.write_layer(attempt=0, step=3, layer=0, record=LARGE)
    client.meta.events.unregister(name, fail_once)
    assert failed == [PART]
    manifest = checkpoints.seal(Header(0, 3, 7, BATCH), [file])
    assert torch.equal(
        checkpoints.read_layer(manifest, 0).tensors["param/w"], LARGE.tensors["param/w"]
    )


def test_each_part_is_told(bucket, monkeypatch):
    monkeypatch.setattr("bamboo_agent.storage.files._PIECE_BYTES", PART)
    told = []
    checkpoints = Checkpoints(bucket, "uid", on_traffic=lambda: told.append(1))
    files = [checkpoints.write_layer(attempt=0, step=1, layer=0, record=LARGE)]
    assert len(told) == 3
    manifest = checkpoints.seal(Header(0, 1, 7, BATCH), files)
    told.clear()
    checkpoints.read_layer(manifest, 0)
    assert len(told) == 1 + 3


def test_a_job_s_folder_is_known_from_one_that_is_away(bucket, store):
    found = Checkpoints(f"{bucket}/p", "uid")
    assert found.scan() == ([], [], f"{bucket}/p/uid is not there")
    assert not found.claim(1)
    for _ in range(2):
        found.probe()
        assert found.scan() == ([], [], "")
    assert found.claim(1)
    other = Checkpoints("s3://no-such-bucket", "uid")
    assert other.scan() == ([], [], "s3://no-such-bucket/uid is not there")


# ---------------------------------------------------------------- the manifest


def test_of_two_that_seal_other_files_one_does(checkpoints):
    header = Header(0, 3, 7, BATCH)
    values = [replace(RECORD, extra=f'{{"a": {x}}}') for x in range(2)]
    files = [
        [checkpoints.write_layer(attempt=0, step=3, layer=x, record=value)]
        for x, value in enumerate(values)
    ]
    start, sealed_by, refused = threading.Barrier(2), [], []

    def seal(mine):
        start.wait()
        try:
            sealed_by.append(checkpoints.seal(header, mine))
        except CheckpointError as error:
            refused.append(error)

    threads = [threading.Thread(target=seal, args=(mine,)) for mine in files]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (manifest,), (error,) = sealed_by, refused
    assert str(error).endswith("another agent has sealed other files there")
    assert error.cause == str(error)
    assert checkpoints.scan() == ([manifest], [], "")


def test_who_seals_the_same_files_again_changes_nothing(checkpoints):
    manifest, files = write(checkpoints)
    assert checkpoints.seal(Header(0, 3, 7, BATCH), files) == manifest


def test_a_manifest_whose_answer_was_lost_is_sealed(checkpoints, monkeypatch):
    _, files = write(checkpoints, step=4)
    create = objects.create

    def lost(*arguments):
        create(*arguments)
        raise OSError(5, "connection reset")

    monkeypatch.setattr(objects, "create", lost)
    manifest = checkpoints.seal(Header(0, 5, 7, BATCH), files)
    assert manifest.step == 5
    monkeypatch.setattr(objects, "create", lambda *_: (_ for _ in ()).throw(OSError(5, "reset")))
    with pytest.raises(CheckpointError, match=r"manifest\.json failed: reset"):
        checkpoints.seal(Header(0, 6, 7, BATCH), files)


@pytest.mark.parametrize("wrong", [b"{", b'{"format": 99}'])
def test_a_damaged_manifest_is_replaced(checkpoints, wrong):
    manifest, files = write(checkpoints)
    s3().pipe_file(manifest.path, wrong)
    assert checkpoints.scan().bad
    assert checkpoints.seal(Header(0, 3, 7, BATCH), files) == manifest
    assert checkpoints.scan() == ([manifest], [], "")


def test_files_of_another_size_or_none_are_found(checkpoints):
    manifest, files = write(checkpoints)
    s3().pipe_file(files[1].path, b"short")
    (error,) = checkpoints.scan().bad
    assert str(error).startswith(f"{files[1].path} has 5 bytes, expected")
    with pytest.raises(CheckpointError, match="is torn: 5 of"):
        checkpoints.read_layer(manifest, 1)
    s3().rm_file(files[1].path)
    assert checkpoints.scan().unreachable == f"{files[1].path} is not there"


# ---------------------------------------------------------------- uploads that do not end


def test_an_upload_that_fails_leaves_nothing(checkpoints, bucket):
    """Not even when the driver's file is collected, which would complete it."""
    before, parts = objects_in(bucket), []

    def fail():
        parts.append(1)
        if len(parts) == 2:
            raise OSError(5, "connection reset")

    with pytest.raises(CheckpointError, match="failed: connection reset"):
        Checkpoints(f"{bucket}/some/prefix", "uid", on_traffic=fail).write_layer(
            attempt=0, step=3, layer=0, record=LARGE
        )
    gc.collect()
    assert objects_in(bucket) == before
    assert uploads(bucket) == []


WRITER = """
    import sys
    import torch
    from bamboo_agent.payloads.kinds import LayerRecord
    from bamboo_agent.storage import checkpoint, files

    def wait():
        print("a part is there", flush=True)
        sys.stdin.read()

    files._PIECE_BYTES = 5 << 20
    found = checkpoint.Checkpoints(sys.argv[1], "uid", on_traffic=wait)
    record = LayerRecord({"w": torch.arange(3_000_000.0)}, "{}")
    found.write_layer(attempt=1, step=3, layer=0, record=record)
"""


def test_a_writer_that_is_killed_leaves_nothing_that_is_taken_for_a_file(
    checkpoints, bucket, monkeypatch
):
    manifest, _ = write(checkpoints, attempt=1, step=2)
    before = objects_in(bucket)
    writer = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(WRITER), f"{bucket}/some/prefix"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert writer.stdout.readline() == "a part is there\n"
    writer.kill()
    writer.communicate()
    key = "some/prefix/uid/attempt-0001/step-00000003/layer-0000.safetensors"
    assert (objects_in(bucket), uploads(bucket)) == (before, [key])
    assert checkpoints.scan() == ([manifest], [], "")
    checkpoints.prune(keep=2, newest=manifest, facts=Facts())
    assert uploads(bucket) == [key]  # it may be of an agent that lives
    newest, _ = write(checkpoints, attempt=2, step=3)
    checkpoints.prune(keep=2, newest=newest, facts=Facts())
    assert uploads(bucket) == []
    assert checkpoints.scan().good == [manifest, newest]


def test_only_uploads_of_this_job_that_nobody_goes_on_with_are_removed(
    checkpoints, bucket, monkeypatch
):
    others = [f"some/prefix/{name}/attempt-0000/step-00000001/x" for name in ("uid-2", "other")]
    mine = [f"some/prefix/uid/attempt-000{a}/step-00000001/x" for a in (0, 1, 2)]
    for key in (*others, *mine, "some/prefix/uid/made"):
        begin_upload(bucket, key)
    newest, _ = write(checkpoints, attempt=1)
    checkpoints.prune(keep=2, newest=newest, facts=Facts())
    assert uploads(bucket) == sorted((*others, *mine[1:], "some/prefix/uid/made"))
    monkeypatch.setattr(objects, "SAFE_AGE", timedelta(0))
    checkpoints.prune(keep=2, newest=newest, facts=Facts())
    assert uploads(bucket) == sorted(others)


def test_checkpoints_are_pruned(checkpoints, bucket):
    manifests = [write(checkpoints, step=step)[0] for step in (1, 2, 3, 4)]
    checkpoints.write_layer(attempt=0, step=1, layer=7, record=RECORD)  # never sealed
    checkpoints.prune(keep=2, newest=manifests[3], facts=Facts())
    assert checkpoints.scan() == (manifests[2:], [], "")
    assert len(objects_in(bucket)) == 2 * 3 + 1


# ---------------------------------------------------------------- in a fleet


def test_suspend_and_resume_in_another_grid_changes_no_bit(bucket):
    job = tiny_gpt(uri=f"{bucket}/job", save_every=1, keep=2)
    first, fence = InProcessFleet(job, plans.names(4)), Fence(0, 1, 1)
    Checkpoints(job.checkpoint.uri, "uid").probe()
    plan(first, fence, first.stop(fence, want_manifests=True), grid=(2, 2))
    first.run_to_end(fence)
    older = sorted(sealed(first), key=lambda manifest: manifest.step)[-2]
    first.close()
    fence = Fence(1, 1, 3)
    second = InProcessFleet(job, plans.names(4))
    reports = second.stop(fence, want_manifests=True)
    second.wait(lambda: len(listed(second)) == 4)
    assert older in listed(second)[0]
    plan(second, fence, reports, grid=(1, 4), manifest=older)
    second.run_to_end(fence)
    second.close()
    history = {r.step: r for r in first.history()} | {r.step: r for r in second.history()}
    assert max(history) == reference.STEPS
    assert_equal([history[s] for s in sorted(history)], second.weights(), leaf_size=2, chunks=4)


@pytest.mark.parametrize(("uri", "loaded"), [("file:///tmp/x", False), ("s3://bucket/x", True)])
def test_a_driver_is_imported_only_for_its_addresses(uri, loaded):
    code = """
        import sys
        import bamboo_agent.worker.main
        from bamboo_agent.storage.checkpoint import Checkpoints
        Checkpoints(sys.argv[1], "uid")
        drivers = {"s3fs", "gcsfs", "adlfs", "botocore", "aiobotocore", "azure"}
        print(*sorted(drivers & set(sys.modules)))
    """
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), uri],
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    assert found == (["aiobotocore", "botocore", "s3fs"] if loaded else [])
