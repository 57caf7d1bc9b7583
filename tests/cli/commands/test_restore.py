"""`bamboo restore`: what it says, what it writes, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.cli.fake_api import JOB_PATH, Server

from bamboo_cli.cluster.place import Place
from bamboo_cli.commands.restore import Order, check, step_of
from bamboo_cli.errors import CommandError
from bamboo_cli.main import cli
from bamboo_cli.views.terminal.console import make_console
from bamboo_core.arbiter_state.durable import Durable, Fork, Restored, from_json, to_json
from bamboo_core.model.ids import Fence
from bamboo_core.protocol.messages import Manifest


@pytest.fixture
def job(training: dict[str, Any]) -> dict[str, Any]:
    """Steps up to 19 are committed; checkpoints are of steps 5, 10 and 15, the last one bad."""
    known = tuple(Manifest(0, step, f"0/{step}", "d") for step in (5, 10, 15))
    found = from_json(training["status"]["arbiter"])
    facts = Durable(**{**vars(found), "manifests": known, "bad": ((0, 15),), "committed": 19})
    training["status"]["arbiter"] = to_json(facts)
    return training


def change(job: dict[str, Any], **facts: Any) -> None:
    """Other facts of the arbiter."""
    found = from_json(job["status"]["arbiter"])
    job["status"]["arbiter"] = to_json(Durable(**{**vars(found), **facts}))


def obeys(job: dict[str, Any], attempt: int = 1, **facts: Any) -> Callable[[Any], None]:
    """An operator that answers an order at once. attempt 0: it refuses."""

    def answer(body: Any) -> None:
        order = body["spec"]["restore"]
        said = Restored(order["id"], order["fromStep"], attempt)
        change(job, restored=(said,), **facts)

    return answer


def run(
    server: Server,
    kubeconfig: Path,
    job: dict[str, Any],
    *more: str,
    operator: Callable[[Any], None] | None = None,
    **options: Any,
) -> Result:
    server.answers[JOB_PATH] = (200, job)
    server.on_patch = operator or obeys(job)
    arguments = ["restore", "gpt", "--kubeconfig", str(kubeconfig), *more]
    return CliRunner().invoke(cli, arguments, **options)


def test_it_says_what_it_costs_and_writes_the_order(
    server: Server, kubeconfig: Path, job: dict[str, Any]
) -> None:
    done = run(server, kubeconfig, job, "--from-step", "5", input="y\n")
    assert done.exit_code == 0, done
    assert done.output.startswith(
        "gpt goes on from the checkpoint of step 5: 15 steps of 80 are computed again, and newer"
        " checkpoints are not used any more: 10.\nGo back to it? [y/N]"
    )
    assert done.output.endswith(
        "Attempt 1 begins from the checkpoint of step 5. `bamboo status gpt` shows when training"
        " goes on.\n"
    )
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
    assert check(job, 0) == "gpt goes on from the start: 20 steps of 80 are computed again."
    job["status"]["progress"]["step"] = 1
    assert "1 step of 80 is computed again" in check(job, 0)


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (16, "--from-step 16: there is no checkpoint of that step that can be used; there are 5,"),
        (7, "there are 5, 10, 15 (marked as wrong), and start."),
    ],
)
def test_a_step_without_a_good_checkpoint(job: dict[str, Any], step: int, words: str) -> None:
    with pytest.raises(CommandError) as refused:
        check(job, step)
    assert words in str(refused.value)


def test_a_step_whose_checkpoint_is_marked_as_wrong(job: dict[str, Any]) -> None:
    """An operator of an earlier version may have marked it because the folder was away."""
    assert check(job, 15) == (
        "gpt goes on from the checkpoint of step 15: 5 steps of 80 are computed again. It is marked"
        " as wrong; agents read it again, and the mark comes back if it is."
    )


def test_a_job_that_has_no_checkpoint_yet(job: dict[str, Any]) -> None:
    job["status"]["arbiter"] = {}
    with pytest.raises(CommandError, match="the job has none yet, so only start is possible"):
        check(job, 5)


def test_what_a_restore_without_a_commit_has_left_can_be_chosen(job: dict[str, Any]) -> None:
    change(job, attempt=1, forks=(Fork(1, 5),), committed=4)
    assert "step 10" in check(job, 10)


def test_a_job_that_has_ended(job: dict[str, Any]) -> None:
    job["status"]["conditions"][1]["status"] = "True"
    with pytest.raises(CommandError, match="the job is Complete, which is final; create a new"):
        check(job, 5)


@pytest.mark.parametrize("text", ["", "0", "-1", "4.5", "newest", "\u0664", "00000000000"])
def test_what_is_no_step(text: str) -> None:
    with pytest.raises(CommandError, match=f'--from-step "{text}": give the step of a checkpoint'):
        step_of(text)


def test_a_number_that_python_does_not_read_is_no_step() -> None:
    with pytest.raises(CommandError, match=f'--from-step "{"9" * 40}...": give the step'):
        step_of("9" * 5000)


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


# ---------------------------------------------------------------- the operator's answer


def test_a_checkpoint_that_goes_meanwhile_is_said(
    server: Server, kubeconfig: Path, job: dict[str, Any]
) -> None:
    """It was deleted after the command had looked, so the operator refuses."""
    left = tuple(Manifest(0, step, f"0/{step}", "d") for step in (10, 12))
    refuses = obeys(job, 0, manifests=left)
    done = run(server, kubeconfig, job, "--from-step", "5", "--yes", operator=refuses)
    assert done.exit_code == 1
    assert str(done.exception) == (
        "--from-step 5: there is no checkpoint of that step that can be used; there are 10, 12, and"
        " start."
    )


def test_a_refusal_whose_cause_is_gone(
    server: Server, kubeconfig: Path, job: dict[str, Any]
) -> None:
    done = run(server, kubeconfig, job, "--from-step", "5", "--yes", operator=obeys(job, 0))
    assert done.exit_code == 1
    assert "the operator refuses the order" in str(done.exception)


def test_a_job_that_has_computed_nothing(
    server: Server, kubeconfig: Path, job: dict[str, Any]
) -> None:
    idle = obeys(job, 0, plan=Fence())
    done = run(server, kubeconfig, job, "--from-step", "start", "--yes", operator=idle)
    assert done.exit_code == 0
    assert done.output.endswith("The job has computed nothing yet, so nothing changes.\n")


def ends(job: dict[str, Any]) -> None:
    job["status"]["conditions"][1]["status"] = "True"


def is_replaced(job: dict[str, Any]) -> None:
    job["metadata"]["uid"] = "u2"


@pytest.mark.parametrize(
    ("happens", "words"),
    [
        (ends, "the job is Complete meanwhile, so nothing is restored."),
        (is_replaced, "gpt has been deleted and created again meanwhile; look at `bamboo status"),
    ],
)
def test_the_job_ends_or_is_replaced_meanwhile(
    server: Server,
    kubeconfig: Path,
    job: dict[str, Any],
    happens: Callable[[dict[str, Any]], None],
    words: str,
) -> None:
    done = run(
        server, kubeconfig, job, "--from-step", "5", "--yes", operator=lambda _: happens(job)
    )
    assert done.exit_code == 1
    assert words in str(done.exception)


def test_an_operator_that_does_not_answer(
    server: Server, kubeconfig: Path, job: dict[str, Any]
) -> None:
    server.answers[JOB_PATH] = (200, job)
    clock, pauses = iter(range(100)), list[float]()
    place = Place(kubeconfig=kubeconfig)
    order = Order(place, job, 5, make_console(), lambda: float(next(clock)), pauses.append)
    with pytest.raises(CommandError) as late:
        order.give(timeout_s=3.0)
    assert str(late.value) == (
        "the order is written, but the operator has not answered in 3 s; it counts once an operator"
        " leads the job: `bamboo explain gpt` says more."
    )
    assert len(pauses) == 3


def test_an_answer_is_waited_for(server: Server, kubeconfig: Path, job: dict[str, Any]) -> None:
    server.answers[JOB_PATH] = (200, job)
    pauses = list[float]()

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            obeys(job)(server.patched[-1][2])

    Order(Place(kubeconfig=kubeconfig), job, 5, make_console(), pause=pause).give(timeout_s=60.0)
    assert len(pauses) == 2
