"""`bamboo restore`: what it says, what it writes, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.cli.fake_api import JOB_PATH, Server

from bamboo_cli.commands.restore import check, step_of
from bamboo_cli.errors import CommandError
from bamboo_cli.main import cli
from bamboo_core.arbiter_state.durable import Durable, Fork, from_json, to_json
from bamboo_core.protocol.messages import Manifest


@pytest.fixture
def job(training: dict[str, Any]) -> dict[str, Any]:
    """Steps up to 19 are committed; checkpoints are of steps 5, 10 and 15, the last one bad."""
    known = tuple(Manifest(0, step, f"0/{step}", "d") for step in (5, 10, 15))
    found = from_json(training["status"]["arbiter"])
    facts = Durable(**{**vars(found), "manifests": known, "bad": ((0, 15),), "committed": 19})
    training["status"]["arbiter"] = to_json(facts)
    return training


def run(
    server: Server, kubeconfig: Path, job: dict[str, Any], *more: str, **options: Any
) -> Result:
    server.answers[JOB_PATH] = (200, job)
    arguments = ["restore", "gpt", "--kubeconfig", str(kubeconfig), *more]
    return CliRunner().invoke(cli, arguments, **options)


def test_it_says_what_it_costs_and_writes_the_order(
    server: Server, kubeconfig: Path, job: dict[str, Any]
) -> None:
    done = run(server, kubeconfig, job, "--from-step", "5", input="y\n")
    assert done.exit_code == 0, done
    assert done.output.startswith(
        "gpt goes on from the checkpoint of step 5: 15 steps of 32 are computed again, and newer"
        " checkpoints are not used any more: 10.\nGo back to it? [y/N]"
    )
    assert done.output.endswith("`bamboo status gpt` shows when training goes on.\n")
    ((path, kind, body),) = server.patched
    assert (path, kind) == (JOB_PATH, "application/merge-patch+json")
    assert body["metadata"] == {"uid": "u1"}
    order = body["spec"]["restore"]
    assert order == {"id": order["id"], "fromStep": 5}
    assert len(order["id"]) == 12


def test_each_order_is_another_one(server: Server, kubeconfig: Path, job: dict[str, Any]) -> None:
    for _ in range(2):
        assert run(server, kubeconfig, job, "--from-step", "start", "--yes").exit_code == 0
    one, two = (body["spec"]["restore"] for _, _, body in server.patched)
    assert one["fromStep"] == two["fromStep"] == 0
    assert one["id"] != two["id"]


def test_the_start_needs_no_checkpoint(job: dict[str, Any]) -> None:
    job["status"]["arbiter"] = {}
    assert check(job, 0) == "gpt goes on from the start: 20 steps of 32 are computed again."
    job["status"]["progress"]["step"] = 1
    assert "1 step of 32 is computed again" in check(job, 0)


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (15, "--from-step 15: there is no checkpoint of that step that can be used; there are 5,"),
        (7, "there are 5, 10, and start."),
    ],
)
def test_a_step_without_a_good_checkpoint(job: dict[str, Any], step: int, words: str) -> None:
    with pytest.raises(CommandError) as refused:
        check(job, step)
    assert words in str(refused.value)


def test_a_job_that_has_no_checkpoint_yet(job: dict[str, Any]) -> None:
    job["status"]["arbiter"] = {}
    with pytest.raises(CommandError, match="the job has none yet, so only start is possible"):
        check(job, 5)


def test_what_a_restore_without_a_commit_has_left_can_be_chosen(job: dict[str, Any]) -> None:
    found = from_json(job["status"]["arbiter"])
    idle = {"attempt": 1, "forks": (Fork(1, 5),), "committed": 4}
    job["status"]["arbiter"] = to_json(Durable(**{**vars(found), **idle}))
    assert "step 10" in check(job, 10)


def test_a_job_that_has_ended(job: dict[str, Any]) -> None:
    job["status"]["conditions"][1]["status"] = "True"
    with pytest.raises(CommandError, match="the job is Complete, which is final; create a new"):
        check(job, 5)


@pytest.mark.parametrize("text", ["", "0", "-1", "4.5", "newest"])
def test_what_is_no_step(text: str) -> None:
    with pytest.raises(CommandError, match=f'--from-step "{text}": give the step of a checkpoint'):
        step_of(text)


def test_nobody_answers(server: Server, kubeconfig: Path, job: dict[str, Any]) -> None:
    done = run(server, kubeconfig, job, "--from-step", "5", input="")
    assert (done.exit_code, server.patched) == (1, [])
    assert "nothing is changed; give --yes where nobody can answer" in str(done.exception)


def test_the_answer_is_no(server: Server, kubeconfig: Path, job: dict[str, Any]) -> None:
    done = run(server, kubeconfig, job, "--from-step", "5", input="n\n")
    assert (done.exit_code, server.patched) == (1, [])


def test_a_suspended_job_obeys_when_it_is_resumed(
    server: Server, kubeconfig: Path, job: dict[str, Any]
) -> None:
    job["spec"]["suspend"] = True
    done = run(server, kubeconfig, job, "--from-step", "10", "--yes")
    assert done.output.endswith("The job is suspended; the order counts when it is resumed.\n")
    assert len(server.patched) == 1


def test_another_job_with_the_name(server: Server, kubeconfig: Path, job: dict[str, Any]) -> None:
    server.answers[f"PATCH {JOB_PATH}"] = (409, {"message": "the UID differs"})
    done = run(server, kubeconfig, job, "--from-step", "10", "--yes")
    assert "has been deleted and created again meanwhile" in str(done.exception)


def test_the_command_may_be_forbidden(
    server: Server, kubeconfig: Path, job: dict[str, Any]
) -> None:
    server.answers[f"PATCH {JOB_PATH}"] = (403, {"message": "bamboojobs is forbidden"})
    done = run(server, kubeconfig, job, "--from-step", "10", "--yes")
    assert "the API server refused the request: bamboojobs is forbidden" in str(done.exception)


def test_facts_that_cannot_be_read(server: Server, kubeconfig: Path, job: dict[str, Any]) -> None:
    job["status"]["arbiter"] = {"forks": "x"}
    done = run(server, kubeconfig, job, "--from-step", "10", "--yes")
    assert "status.arbiter of the job cannot be read" in str(done.exception)
