"""The judge finds what is wrong: each kind of verdict, and each difference between two runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bamboo_agent.payloads.kinds import LayerRecord
from bamboo_core.model.program import Op
from bamboo_core.protocol.messages import Fingerprint
from bamboo_sim.user_code.case import Equal, Expected, Refused, Unlike
from bamboo_sim.user_code.cases import BY_NAME, CASES
from bamboo_sim.user_code.judge import How, Verdict, judge
from bamboo_sim.user_code.processes import CaseFleet, Death, EndedError, serve_here
from bamboo_sim.user_code.training import Trained, differences
from bamboo_sim.workers import plans

PLAIN = BY_NAME["sgd"]


def test_a_planted_wrong_expectation_is_found() -> None:
    """A sound job that should be refused, or whose agents should be unlike."""
    for expected in (Refused(("layer 0",)), Unlike()):
        verdict = judge(replace(PLAIN, expected=expected))
        assert (verdict.how, verdict.is_expected) == (How.ACCEPTED, False)


def test_a_job_that_should_be_equal_and_is_refused_is_found() -> None:
    verdict = judge(replace(PLAIN, optimizer_args={"lr": -1.0}))
    assert (verdict.how, verdict.is_expected) == (How.REFUSED, False)
    assert "torch.optim:SGD raised ValueError: Invalid learning rate" in verdict.text


def test_a_planted_difference_of_what_was_trained_is_found() -> None:
    """The other optimizer computes something else, so all runs but that one are equal."""
    verdict = judge(replace(PLAIN, expected=Equal(like="optimizers:by_hand")))
    assert (verdict.how, verdict.is_expected) == (How.UNEQUAL, False)
    assert verdict.text.startswith("optimizers:by_hand: loss and norm of step 1")
    assert "through a" not in verdict.text


def test_an_error_of_the_judge_is_no_verdict_on_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr("bamboo_sim.user_code.judge.set_up", fail)
    verdict = judge(replace(PLAIN, expected=Refused(())))
    assert (verdict.how, verdict.text, verdict.is_expected) == (
        How.ENDED,
        "KeyError: 'x'",
        False,
    )


@pytest.mark.parametrize(
    ("expected", "how", "text", "is_expected"),
    [
        (Refused(("layer 1", "share|same")), How.REFUSED, "Layer 1: a SHARED weight", True),
        (Refused(("layer 1", "share|same")), How.REFUSED, "layer 1: a weight", False),
        (Refused(("layer 1",)), How.EQUAL, "", False),
        (Refused(("layer 1",), or_equal=True), How.EQUAL, "", True),
        (Refused(("layer 1",), or_equal=True), How.UNEQUAL, "layer 1", False),
        (Refused(("layer 1",)), How.ENDED, "layer 1", False),
        (Equal(), How.EQUAL, "", True),
        (Equal(), How.ENDED, "", False),
        (Unlike(), How.UNLIKE, "", True),
        (Unlike(), How.REFUSED, "", False),
    ],
)
def test_verdicts(expected: Expected, how: How, text: str, is_expected: bool) -> None:
    assert Verdict(replace(PLAIN, expected=expected), how, text).is_expected is is_expected


def trained(**changes: torch.Tensor) -> Trained:
    tensors = {"param/a": torch.tensor([1.0, float("nan")]), "optim/a/m": torch.zeros(2)}
    record = LayerRecord({**tensors, **changes})
    return Trained({Fingerprint()}, {0: ("1.0", "nan")}, [record])


@pytest.mark.parametrize(
    "changes",
    [
        {"param/a": torch.tensor([1.0, 2.0])},
        {"optim/a/m": -torch.zeros(2)},
        {"optim/a/m": torch.zeros(2, dtype=torch.float64)},
        {"optim/a/m": torch.zeros(1, 2)},
        {"optim/a/more": torch.zeros(2)},
    ],
)
def test_every_difference_of_a_state_is_found(changes: dict[str, torch.Tensor]) -> None:
    (name,) = changes
    assert differences(trained(), trained()) == []
    assert differences(trained(), trained(**changes)) == [f"layer 0: {name}"]


def test_every_other_difference_is_found() -> None:
    other = trained()
    other.losses[0] = ("1.5", "nan")
    other.layers[0] = replace(other.layers[0], extra="{1}")
    other.fingerprints = {Fingerprint(code="x")}
    found = differences(trained(), other)
    assert len(found) == 3
    assert found[0] == "agents have different fingerprints"
    assert found[1].startswith("loss and norm of step 0")
    both = replace(trained(), fingerprints={Fingerprint(), Fingerprint(code="x")})
    assert differences(both, both) == ["agents have different fingerprints"]


def test_a_worker_that_ends_by_itself_is_found(tmp_path: Path) -> None:
    agents = plans.names(2)
    fleet = CaseFleet(PLAIN.job(tmp_path), agents, tmp_path, {}, serve_here)
    try:
        fleet.ready()
        fleet.processes[agents[0]].kill()
        with pytest.raises(EndedError, match=f"{agents[0]} has ended; it said nothing"):
            fleet.wait(lambda: False)
    finally:
        fleet.close()


def test_a_death_survives_an_environment_variable() -> None:
    death = Death(3, Op.UPDATE, 2)
    assert Death.parse(death.to_text()) == death


def test_the_table_names_every_report(tmp_path: Path) -> None:
    sources = " ".join(case.source for case in CASES)
    for name in ("R9", "R10", "R11", "R13", "R14", "R15", "R23", "R30", "R35", "kind B", "kind C"):
        assert name in sources
    for line in range(1, 7):
        assert f"review-models 1.{line}" in sources
    assert "review-models 2" in sources
    assert len(BY_NAME) == len(CASES) >= 30
    assert all(case.job(tmp_path).model.factory for case in CASES)
