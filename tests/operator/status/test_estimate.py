"""What is left until a job's end, in its status."""

from __future__ import annotations

from typing import Any

import pytest

from bamboo_operator.money.prices import Rate
from bamboo_operator.status import estimate, statuses

from ..harness import PATH, Harness

PRICED = Rate(3.0, 9.0)


def status(step: int, *, phase: str = "Running", state: str = "Training", steps: int = 1000) -> Any:
    """A job whose state began at second 0."""
    return {
        "phase": phase,
        "progress": {"step": step, "steps": steps},
        "times": {"state": state, "since": "1970-01-01T00:00:00Z"},
    }


def written(*seen: tuple[float, Any], rate: Rate | None = PRICED) -> Any:
    """The status after these looks, each a time and a status."""
    old: Any = {}
    for now, new in seen:
        old = new | estimate.write(new, old, rate, now)
    return old


def test_time_and_cost_at_the_measured_pace() -> None:
    found = written((10.0, status(1)), (910.0, status(91)))
    assert found["pace"] == [{"seconds": 10.0, "step": 1}]
    assert found["estimate"] == {"timeLeft": "2.5 h", "secondsLeft": 9090, "dollarsLeft": 7.57}
    free = written((10.0, status(1)), (910.0, status(91)), rate=None)
    assert free["estimate"] == {"timeLeft": "2.5 h", "secondsLeft": 9090}


def test_what_is_not_known_yet_is_said() -> None:
    found = written((10.0, status(0)), (20.0, status(1)), (30.0, status(9)))
    assert found["estimate"] == {"timeLeft": "not known yet"}
    assert "pace" not in written((10.0, status(0)))


def test_a_job_that_stands_still_is_not_written_again() -> None:
    looks = [(10.0, status(1)), (910.0, status(91))]
    assert written(*looks, (5000.0, status(91))) == written(*looks)
    moved = written(*looks, (1810.0, status(92)))
    assert moved["estimate"]["secondsLeft"] == round(908 * 1800 / 91)
    assert statuses.differ_in_progress_only(written(*looks), moved)


@pytest.mark.parametrize(
    ("phase", "state", "expected"),
    [
        ("Recovering", "Recovering", "2.5 h"),
        ("Recovering", "WaitingForCapacity", "not known yet"),
        ("Suspended", "Suspended", None),
        ("Suspending", "Suspended", None),
        ("Pending", "Waiting", None),
        ("Starting", "Starting", None),
        ("Complete", "Ended", None),
        ("Failed", "Ended", None),
    ],
)
def test_only_a_job_that_trains_has_an_estimate(
    phase: str, state: str, expected: str | None
) -> None:
    last = status(91, phase=phase, state=state)
    last["times"]["seconds"] = {"Training": 910.0}
    found = written((10.0, status(1)), (910.0, status(91)), (910.0, last))
    assert found.get("estimate", {}).get("timeLeft") == expected
    assert ("pace" in found) == (phase not in ("Complete", "Failed"))


def test_all_steps_done_leaves_nothing() -> None:
    found = written((10.0, status(1)), (910.0, status(1000)))
    assert found["estimate"] == {"timeLeft": "0 s", "secondsLeft": 0, "dollarsLeft": 0.0}


async def test_a_job_that_nobody_leads_has_none(harness: Harness) -> None:
    """Its pace stays, for the time when it is led again."""
    harness.apply()
    harness.kube.objects[PATH]["status"] = written((10.0, status(1)), (910.0, status(91)))
    harness.kube.objects[PATH]["spec"]["model"] = 5
    await harness.reconcile()
    assert harness.condition("Accepted")["status"] == "False"
    assert "estimate" not in harness.status
    assert harness.status["pace"] == [{"seconds": 10.0, "step": 1}]


async def test_another_operator_goes_on_from_it(harness: Harness) -> None:
    """The job had trained, and its agents are gone."""
    harness.apply()
    await harness.reconcile()
    assert not {"pace", "estimate"} & harness.status.keys()
    before = status(11)
    before["times"] = {"state": "Training", "since": "1970-01-01T00:15:00Z"}
    harness.status.update(before, pace=[{"seconds": 5.0, "step": 1}])
    other = Harness()
    other.kube.objects = harness.kube.objects
    await other.reconcile()
    assert other.status["phase"] == "Recovering"
    assert other.status["pace"] == [{"seconds": 5.0, "step": 1}]
    assert other.status["estimate"] == {"timeLeft": "not known yet"}
