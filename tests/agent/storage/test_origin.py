"""A job begins with another job's checkpoint: a manifest points to files that are only read."""

from __future__ import annotations

import json
import re
import select
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.agent.conftest import use
from tests.agent.storage.test_checkpoint import RECORD

from bamboo_agent.storage import objects
from bamboo_agent.storage.checkpoint import (
    CheckpointError,
    Checkpoints,
    Facts,
    Header,
    UnreachableError,
)
from bamboo_agent.storage.origin import Origin, OriginError, identity_of, origin_of
from bamboo_agent.storage.reader import Listing, NoOrigin, Reader
from bamboo_agent.weight_files.outlines import WeightsError
from bamboo_agent.weights.finding import Wanted, find
from bamboo_agent.worker.failures import judge
from bamboo_core.api.reasons import FailureCause, Reason
from bamboo_core.api.spec import (
    CheckpointSpec,
    Difference,
    JobSpec,
    SourceSpec,
    batch_shape,
)
from bamboo_core.model.ids import Fence
from bamboo_core.protocol.exit_codes import ExitCode
from bamboo_core.protocol.messages import Fingerprint, Manifest
from bamboo_sim.fleet.runs.jobs import tiny_gpt

SAME = Fingerprint(code="c", data="d")


def first_job(uri: str, *, identity: dict[str, str] | None = None) -> JobSpec:
    """Job A with the checkpoints of steps 2 and 4 in attempt 0."""
    spec = replace(tiny_gpt(Path("/nowhere")), checkpoint=CheckpointSpec(uri))
    for step in (2, 4):
        write(uri, "a", spec, step, identity=identity)
    return spec


def write(
    uri: str,
    uid: str,
    spec: JobSpec,
    step: int,
    *,
    attempt: int = 0,
    identity: dict[str, str] | None = None,
) -> Manifest:
    checkpoints = Checkpoints(uri, uid)
    files = [
        checkpoints.write_layer(attempt=attempt, step=step, layer=x, record=RECORD)
        for x in range(2)
    ]
    noted = identity_of(spec, SAME) if identity is None else identity
    return checkpoints.seal(
        Header(attempt, step, spec.seed, batch_shape(spec), identity=noted), files
    )


def second_job(
    spec: JobSpec,
    fingerprint: Fingerprint = SAME,
    sources: dict[str, str] | None = None,
    **source: Any,
) -> Origin:
    """Job B, which begins with a checkpoint of A. sources: its code by factory."""
    assert spec.checkpoint is not None
    given = SourceSpec(**(source or {"job": "a"}))
    spec = replace(spec, checkpoint=replace(spec.checkpoint, from_=given))
    origin = origin_of(spec, identity_of(spec, fingerprint, sources or {}))
    assert origin is not None
    return origin


def own(uri: str) -> Checkpoints:
    found = Checkpoints(uri, "b")
    found.probe()
    return found


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return tmp_path.as_uri()


def check_begins(uri: str, step: int, source: dict[str, Any]) -> None:
    """The listing names the checkpoint, and its layers are read from the other job's folder."""
    spec, checkpoints = first_job(uri), own(uri)
    for _ in range(2):  # the second agent finds what it would have written
        second_job(spec, **source).settle(checkpoints)
    (manifest,) = checkpoints.scan().good
    assert (manifest.attempt, manifest.step) == (0, step)
    assert f"/b/attempt-0000/step-{step:08}/" in manifest.path
    records = list(checkpoints.read_layers(manifest, range(2)))
    assert all(torch.equal(r.tensors["param/w"], RECORD.tensors["param/w"]) for r in records)
    assert all(f"/a/attempt-0000/step-{step:08}/" in path for path in checkpoints.paths(manifest))
    theirs = Checkpoints(uri, "a")
    newer = [write(uri, "b", spec, n) for n in (step + 1, step + 2)]
    checkpoints.prune(keep=2, newest=newer[-1], facts=Facts())
    assert checkpoints.scan().good == newer
    assert [m.step for m in theirs.scan().good] == [2, 4]
    for found in theirs.scan().good:
        theirs.check(found)


@pytest.mark.parametrize(
    ("source", "step"),
    [
        ({"job": "a"}, 4),
        ({"job": "a", "step": 2}, 2),
        ({"job": "a", "attempt": 0, "step": 2}, 2),
        ({"uri": "{}/a/attempt-0000/step-00000002"}, 2),
        ({"uri": "{}/a/attempt-0000/step-00000002/manifest.json"}, 2),
        ({"uri": "{}/a/attempt-0000/"}, 4),
    ],
)
def test_it_begins_with_what_is_named(uri: str, source: dict[str, Any], step: int) -> None:
    given = {k: v.format(uri) if isinstance(v, str) else v for k, v in source.items()}
    check_begins(uri, step, given)


def test_it_begins_in_a_bucket(bucket: str) -> None:
    check_begins(f"{bucket}/jobs", 4, {"job": "a"})


def test_it_begins_in_a_folder_with_what_is_in_a_bucket(
    bucket: str, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a run on a user's machine does. The other way round works as well."""
    for theirs, mine in ((f"{bucket}/jobs", uri), (f"{uri}/other", f"{bucket}/new")):
        spec, checkpoints = first_job(theirs), own(mine)
        second_job(spec, uri=f"{theirs}/a").settle(checkpoints)
        (manifest,) = checkpoints.scan().good
        files = checkpoints.paths(manifest)
        assert all(path.startswith(f"{theirs}/a/".removeprefix("file://")) for path in files)
        for record in checkpoints.read_layers(manifest, range(2)):
            assert torch.equal(record.tensors["param/w"], RECORD.tensors["param/w"])
        third = Checkpoints(mine, "c")
        third.probe()
        second_job(spec, uri=f"{mine}/b").settle(third)
        assert third.paths(third.scan().good[0]) == files
    use(monkeypatch, {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_MAX_ATTEMPTS": "1"})
    found = Checkpoints(uri, "b").scan()
    assert (found.good, found.bad) == ([], [])
    assert found.unreachable.startswith(f"listing {bucket}/jobs/a/attempt-0000/step-00000004 fai")


def test_a_driver_that_is_missing_says_nothing_about_a_checkpoint(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = first_job(uri)
    content = {
        **json.loads(Path(write(uri, "a", spec, 4).path.removeprefix("file://")).read_text())
    }
    checkpoints = own(uri)
    checkpoints.point_to(content, "az://c/p/a/attempt-0000/step-00000004")
    monkeypatch.setitem(sys.modules, "adlfs", None)
    found = checkpoints.scan()
    assert (found.good, found.bad) == ([], [])
    assert "adlfs" in found.unreachable


def test_a_job_that_has_a_checkpoint_looks_no_more(uri: str) -> None:
    """An agent that comes later, when the other job's files are gone."""
    spec, checkpoints = first_job(uri), own(uri)
    mine = write(uri, "b", spec, 6)
    second_job(spec, job="gone").settle(checkpoints)
    assert checkpoints.scan().good == [mine]


def test_a_pointer_is_followed_to_the_files(uri: str) -> None:
    spec, checkpoints = first_job(uri), own(uri)
    second_job(spec).settle(checkpoints)
    third = Checkpoints(uri, "c")
    third.probe()
    second_job(spec, job="b").settle(third)
    (manifest,) = third.scan().good
    assert all("/a/attempt-0000/" in path for path in third.paths(manifest))


# ---------------------------------------------------------------- refused


def refusal(uri: str, origin: Origin) -> str:
    with pytest.raises(OriginError) as found:
        origin.settle(own(uri))
    assert not own(uri).scan().good
    assert str(found.value).startswith("spec.checkpoint.from")
    return str(found.value)


def test_another_job_is_named_field_by_field(uri: str) -> None:
    spec = first_job(uri)
    training = replace(spec.training, steps=99, validate_every=2)  # these may differ
    other = replace(spec, seed=8, training=replace(training, clip_norm=0.25))
    text = refusal(uri, second_job(other))
    assert "spec.seed is 8, was 7" in text
    assert "spec.training.clipNorm is 0.25, was 0.5" in text
    assert text.count(", was ") == 2
    assert "computes something else. Give this job the same values: spec.seed is 8" in text
    assert "accept" not in text
    assert text.endswith("bamboo export, bamboo import, and spec.model.initialFrom in a new job")


def test_other_code_or_data_are_named(uri: str) -> None:
    text = refusal(uri, second_job(first_job(uri), Fingerprint(code="x", data="y")))
    assert (
        "on purpose, set spec.checkpoint.from.accept: [Code, Data]: the source code of the"
        " factories differs and the data set differs, in its length or its samples. Or take only"
        in text
    )


def test_every_difference_stands_behind_its_remedy(uri: str) -> None:
    """The text that reaches the status is cut at its end, and loses none of them."""
    spec = replace(first_job(uri), seed=8)
    args = {f"argument_{n}": "x" * 300 for n in range(9)}
    other = replace(spec, model=replace(spec.model, args={**spec.model.args, **args}))
    text = refusal(uri, second_job(other, Fingerprint(code="x", data="y")))
    line = judge(OriginError(text), ready=False).line
    assert "set spec.checkpoint.from.accept: [Code, Data]: the source code" in line
    assert "and the data set differs" in line
    assert "Give this job the same values: spec.model.args.argument_0 is sha256:" in line
    assert "; and 6 more" in text


def test_factories_with_other_code_are_named(uri: str) -> None:
    spec = first_job(uri)
    before = {"m:build": "1", "d:build": "2", "old:build": "3"}
    write(uri, "a", spec, 5, identity=identity_of(spec, replace(SAME, code="x"), before))
    after = {"m:build": "9", "d:build": "2", "new:build": "4"}
    text = refusal(uri, second_job(spec, SAME, after))
    assert "set spec.checkpoint.from.accept: [Code]: the source code of m:build differs." in text
    second_job(spec, replace(SAME, code="x"), after).settle(own(uri))  # only says where


@pytest.mark.parametrize("changed", [["Code"], ["Data"], ["Code", "Data"]], ids=str)
def test_what_the_user_has_changed_on_purpose_may_differ(
    uri: str, changed: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    spec, checkpoints = first_job(uri), own(uri)
    found = replace(SAME, **{name.lower(): "changed" for name in changed})
    accept = tuple(map(Difference, changed))
    second_job(spec, found, job="a", accept=accept).settle(checkpoints)
    assert [m.step for m in checkpoints.scan().good] == [4]
    assert caplog.text.count("differ") == caplog.text.count("accept takes that") == len(changed)


def test_what_is_not_accepted_is_still_refused(uri: str) -> None:
    spec, code = first_job(uri), (Difference.CODE,)
    text = refusal(uri, second_job(spec, replace(SAME, data="y"), job="a", accept=code))
    assert "accept: [Code, Data]: the data set differs" in text
    assert text.count("differs") == 1
    other = replace(spec, seed=8)
    text = refusal(uri, second_job(other, replace(SAME, code="x"), job="a"))
    assert "set spec.checkpoint.from.accept: [Code]: the source code of the factories dif" in text
    assert (
        ". Give this job the same values: spec.seed is 8, was 7. Or take only its weights" in text
    )


def test_what_is_there_is_listed(uri: str) -> None:
    spec = first_job(uri)
    text = refusal(uri, second_job(spec, job="a", step=3))
    assert "has no complete checkpoint of step 3, but of steps 2, 4" in text
    assert "job is a UID: kubectl get bj NAME -o jsonpath={.metadata.uid}" in text


def test_a_long_value_that_differs_is_named_by_its_hash(uri: str) -> None:
    spec = first_job(uri)
    model = replace(spec.model, args={**spec.model.args, "more": "x" * 300})
    text = refusal(uri, second_job(replace(spec, model=model)))
    assert "spec.model.args.more is sha256:" in text
    assert ", was not set" in text


def test_one_of_an_earlier_version_is_refused_with_the_remedy(uri: str) -> None:
    text = refusal(uri, second_job(first_job(uri, identity={})))
    assert "was written by an earlier version" in text
    assert "bamboo import" in text


def test_nothing_is_left_to_train(uri: str) -> None:
    spec = first_job(uri)
    text = refusal(uri, second_job(replace(spec, training=replace(spec.training, steps=4))))
    assert text.endswith("is of step 4, and spec.training.steps is 4: nothing is left to train:"
                         " raise steps")  # fmt: skip


def test_the_fields_and_the_address_disagree(uri: str) -> None:
    first = first_job(uri)
    given = {"uri": f"{uri}/a/attempt-0000/step-00000002", "step": 4}
    assert "from.step is 4, but the uri names 2" in refusal(uri, second_job(first, **given))


def test_what_a_later_attempt_has_left_behind_is_not_taken_unnamed(uri: str) -> None:
    spec = first_job(uri)
    Checkpoints(uri, "a").claim(1)
    assert "name the attempt and the step, such as 0 and 4" in refusal(uri, second_job(spec))
    second_job(spec, job="a", attempt=0, step=4).settle(own(uri))


def torn(folder: Path) -> None:
    path = folder / "layer-0001.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def garbled(folder: Path) -> None:
    (folder / "manifest.json").write_text("{")


def test_a_torn_file_is_named(uri: str, tmp_path: Path) -> None:
    spec = first_job(uri)
    torn(tmp_path / "a/attempt-0000/step-00000004")
    text = refusal(uri, second_job(spec, job="a", attempt=0, step=4))
    assert "step-00000004/layer-0001.safetensors has " in text
    assert text.endswith("name another checkpoint of that job, by attempt and step")


def test_a_damaged_manifest_is_named(uri: str, tmp_path: Path) -> None:
    spec = first_job(uri)
    garbled(tmp_path / "a/attempt-0000/step-00000004")
    text = refusal(uri, second_job(spec, job="a", attempt=0, step=4))
    assert "manifest.json is no manifest" in text


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"path": "../../../x/layer-0000.safetensors"}, "'../../../x/layer-0000.safetensors' does"),
        ({"path": "/c/a/.."}, "its file '/c/a/..' does not stand beside it"),
        ({"path": "/c/"}, "its file '/c/' does not stand beside it"),
        ({"path": "."}, "its file '.' does not stand beside it"),
        ({"path": 7}, "is no manifest"),
        ({"sha256": None}, "is no manifest"),
        ({"bytes": "many"}, "is no manifest"),
        ({"path": "/etc/passwd"}, "/a/attempt-0000/step-00000004/passwd is not there"),
    ],
)
def test_no_file_is_read_but_those_beside_the_manifest(
    uri: str, tmp_path: Path, entry: dict[str, Any], words: str
) -> None:
    """It has absolute paths, of where it was written: only the names at their ends count."""
    spec, folder = first_job(uri), tmp_path / "a/attempt-0000/step-00000004"
    content = json.loads((folder / "manifest.json").read_text())
    content["files"][0] |= entry
    (folder / "manifest.json").write_text(json.dumps(content))
    text = refusal(uri, second_job(spec, job="a", attempt=0, step=4))
    assert words in text
    assert "manifest.json is no manifest" in text or words.startswith("/a/")
    with pytest.raises(WeightsError, match=re.escape(words)):
        find(f"{uri}/a", Wanted(step=4))


@pytest.mark.parametrize("below", ["", "checkpoints"])
def test_a_folder_with_folders_of_jobs_is_told_with_the_address_to_give(
    uri: str, below: str
) -> None:
    """The folder of a run on one machine was said to have no complete checkpoint."""
    folder = f"{uri}/run/{below}".rstrip("/")
    spec = first_job(folder)
    source: dict[str, Any] = {"uri": f"{uri}/run"}
    text = refusal(uri, second_job(spec, **source))
    theirs = f"{folder}/a"
    assert text.endswith(f"/run is no job's folder, but has those of jobs: set uri to {theirs}")
    second_job(spec, uri=theirs).settle(own(uri))
    write(folder, "c", spec, 2)
    assert text + " or 1 more" == refusal(f"{uri}/other", second_job(spec, **source))


def test_a_changed_file_is_found_when_it_is_read(uri: str, tmp_path: Path) -> None:
    spec, checkpoints = first_job(uri), own(uri)
    second_job(spec).settle(checkpoints)
    path = tmp_path / "a/attempt-0000/step-00000004/layer-0000.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    (manifest,) = checkpoints.scan().good
    with pytest.raises(CheckpointError, match=r"a/attempt-0000/.* has been altered"):
        checkpoints.check(manifest)


# ---------------------------------------------------------------- absent, or away


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"job": "x"}, "/x is not there"),
        ({"job": "a", "step": 3}, "/a has no complete checkpoint of step 3, but of steps 2, 4; n"),
        ({"job": "a", "attempt": 1}, "/a has no complete checkpoint of attempt 1, but of steps 2"),
        ({"job": "a", "attempt": 0, "step": 3}, "step-00000003 has no manifest"),
    ],
)
def test_absence_may_be_the_fault_of_the_node(uri: str, source: dict[str, Any], words: str) -> None:
    """A mount may be missing on one node: the failure policy decides, with this line."""
    origin = second_job(first_job(uri), **source)
    with pytest.raises(OriginError, match=words) as found:
        origin.settle(own(uri))
    verdict = judge(found.value, ready=False)
    assert (verdict.reason, verdict.code) == (FailureCause.SET_UP_FAILED, ExitCode.FAILED)
    assert words in verdict.line
    assert verdict.line.count("; name ") == 1


def test_a_wrong_one_is_the_users_fault(uri: str) -> None:
    with pytest.raises(OriginError) as found:
        second_job(replace(first_job(uri), seed=1)).settle(own(uri))
    verdict = judge(found.value, ready=True)
    assert (verdict.reason, verdict.code) == (Reason.CHECKPOINT_FAILED, ExitCode.USER)


def test_a_layer_that_is_not_there_is_named(uri: str, tmp_path: Path) -> None:
    spec = first_job(uri)
    (tmp_path / "a/attempt-0000/step-00000004/layer-0001.safetensors").unlink()
    with pytest.raises(OriginError, match=r"step-00000004/layer-0001.safetensors is not there"):
        second_job(spec, job="a", attempt=0, step=4).settle(own(uri))


def test_its_own_folder_is_away(uri: str) -> None:
    spec = first_job(uri)
    with pytest.raises(UnreachableError, match="own checkpoints is not there"):
        second_job(spec).settle(Checkpoints(uri, "b"))


def until(reader: Reader, kind: type) -> Any:
    while True:
        assert select.select([reader], [], [], 60)[0]
        for result in reader.poll():
            if isinstance(result, kind):
                return result


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """The source's storage does not answer, or does again."""
    is_away = [False]
    real = Checkpoints._list

    def listed(self: Checkpoints, folder: str) -> Any:
        if is_away[0] and folder.split("/")[-1] == "a":
            raise UnreachableError(f"listing {folder} failed: no answer")
        return real(self, folder)

    monkeypatch.setattr(Checkpoints, "_list", listed)

    def switch(away: bool) -> None:
        is_away[0] = away

    return switch


def test_a_listing_waits_for_it_and_says_so(uri: str, unreachable: Callable[[bool], None]) -> None:
    spec, checkpoints = first_job(uri), own(uri)
    unreachable(True)
    reader = Reader(checkpoints, second_job(spec))
    reader.begin_listing(Fence(0, 1, 1))
    said = until(reader, NoOrigin)
    assert (said.fence, "no answer" in said.text) == (Fence(0, 1, 1), True)
    unreachable(False)
    listing = until(reader, Listing)
    assert [m.step for m in listing.good] == [4]
    reader.close()


def test_a_listing_that_finds_another_job_ends_the_worker(uri: str) -> None:
    spec, checkpoints = first_job(uri), own(uri)
    reader = Reader(checkpoints, second_job(replace(spec, seed=1)))
    reader.begin_listing(Fence(0, 1, 1))
    with pytest.raises(OriginError, match=r"spec.seed is 1, was 7"):
        until(reader, Listing)
    reader.close()


def test_no_agent_in_a_bucket_replaces_what_another_one_has_written(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"{bucket}/jobs"
    spec, checkpoints = first_job(uri), own(uri)
    second_job(spec).settle(checkpoints)
    created: list[bool] = []
    real = objects.create
    monkeypatch.setattr(
        objects, "create", lambda *given: created.append(real(*given)) or created[-1]
    )
    content = json.loads(json.dumps(checkpoints.content(checkpoints.scan().good[0])[0]))
    checkpoints.point_to(content, content["from"])
    assert created == [False]
