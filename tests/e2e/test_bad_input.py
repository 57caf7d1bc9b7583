"""Invalid jobs: refused with field, value and remedy, or failed with the essential line."""

from __future__ import annotations

from typing import Any

import pytest
from tests.rotation import in_turn

from bamboo_cli.errors import ProgramError

from .jobs import User, eventually, tiny_job

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            {"training": {"globalBatchSize": 9}},
            "spec.training.globalBatchSize 9 is not a multiple of microBatchSize 2:"
            " choose a multiple",
        ),
        (
            {"pipelines": {"count": 5}},
            "makes 4 micro-batches of 2 samples, fewer than spec.pipelines.count 5",
        ),
        ({"model": {"factory": "no colon"}}, "must be module:function"),
        ({"checkpoint": {"uri": "ftp://x"}}, "is not supported: use file:///path"),
    ],
)
def test_refused_when_applied(guest: User, spec: dict[str, Any], message: str) -> None:
    with pytest.raises(ProgramError, match="kubectl apply failed") as refused:
        guest.apply(tiny_job("wrong", **spec))
    assert message in str(refused.value)


def test_errors_beyond_the_schema_are_reported_soon(user: User) -> None:
    job = tiny_job("sly", worker={"podTemplate": {"spec": {"hostNetwork": True}}})
    user.apply(job)

    def is_told() -> bool:
        line = user.job("sly").condition("Accepted")
        return line is not None and line.status == "False"

    eventually(is_told, timeout_s=10)
    line = user.job("sly").condition("Accepted")
    assert line is not None
    assert "spec.worker.podTemplate.spec.hostNetwork" in line.message
    assert not user.pods("sly")


BROKEN: dict[str, dict[str, Any]] = {
    "no-such-module": {"model": {"factory": "bamboo_agent.models.nothing:build"}},
    "width": {"model": {"args": {"width": 33}}},
    "data": {"data": {"args": {"limit_bytes": 200}}},
    "rate": {"training": {"optimizer": {"args": {"lr": -1}}}},
}


@pytest.fixture(scope="module")
def broken(guest: User, request: pytest.FixtureRequest) -> User:
    """A user whose jobs run at the same time; all but one fail. Those of tests that this commit
    leaves out do not start."""
    named = {x.callspec.params.get("name") for x in request.session.items if hasattr(x, "callspec")}
    for name in BROKEN.keys() & (named | {"width"}):
        guest.apply(tiny_job(name, **BROKEN[name]))
    guest.apply(tiny_job("fine"))
    quits = tiny_job("quits")
    quits["spec"]["model"] = {"factory": "os:_exit", "args": {"status": 0}}
    guest.apply(quits)
    return guest


@pytest.mark.parametrize(
    ("name", "reason", "essence"),
    [
        ("width", "UserCodeFailed", "width: 33 is not divisible by heads 2"),
        *in_turn(
            3,
            [
                ("no-such-module", "UserCodeFailed", "bamboo_agent.models.nothing"),
                ("data", "DataTooSmall", "fewer than globalBatchSize 8"),
                ("rate", "UserCodeFailed", "Invalid learning rate: -1"),
            ],
        ),
    ],
)
def test_user_code_that_fails_ends_the_job(
    broken: User, name: str, reason: str, essence: str
) -> None:
    job = broken.until_ended(name)
    assert job.ended == "Failed"
    line = job.condition("Failed")
    assert line is not None
    assert line.reason == reason
    assert essence in line.message


def test_a_worker_that_exits_with_code_0_has_failed(broken: User) -> None:
    """Its pod is deleted at once, so that only its supervisor can tell."""
    assert broken.until_ended("quits").ended == "Failed"
    line = broken.job("quits").condition("Failed")
    assert line is not None
    assert line.reason == "BackoffLimitExceeded"
    assert "WorkerExited: the worker ended with code 0" in line.message
    status = broken.get("bamboojob", "quits")["status"]
    assert 4 <= status["failures"]["unforgiven"] <= 5
    assert status["losses"] == {"total": 0, "noticed": 0}
    assert status["pods"]["incarnation"] <= status["failures"]["unforgiven"]


def test_the_traceback_is_in_the_agents_log(broken: User) -> None:
    broken.until_ended("width")
    logs = [broken.kubectl("logs", pod["metadata"]["name"]) for pod in broken.pods("width")]
    assert any("Traceback" in log and "width: 33" in log for log in logs)


def test_the_operator_and_a_valid_job_are_not_affected(broken: User) -> None:
    assert broken.until_ended("fine").ended == "Complete"
    pods = broken.programs.kubectl("get", "pods", "--namespace", "bamboo-system", "--no-headers")
    assert all(line.split()[3] == "0" for line in pods.splitlines())
