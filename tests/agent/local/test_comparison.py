"""The comparison with a plain loop says what differs, and sees every single bit."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from bamboo_agent.local import comparison
from bamboo_agent.local.comparison import _difference
from bamboo_agent.payloads.kinds import LayerRecord

TENSORS = {
    "param/weight": torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
    "optim/weight/step": torch.tensor(3.0),
}
RECORD = LayerRecord(TENSORS, "{}")


def changed(name: str, tensor: torch.Tensor) -> LayerRecord:
    return replace(RECORD, tensors={**TENSORS, name: tensor})


def test_equal_records_do_not_differ() -> None:
    same = LayerRecord({name: tensor.clone() for name, tensor in TENSORS.items()}, "{}")
    assert _difference(4, RECORD, same) == ""


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (
            changed("param/weight", torch.tensor([[1.0, 2.0], [3.0, 4.5]])),
            "layer 4, param/weight: the largest of its 4 numbers' differences is 0.5",
        ),
        (changed("param/weight", torch.tensor([[1.0, 2.0], [3.0, 4.0]]).double()), "float64"),
        (changed("optim/weight/step", torch.tensor([3.0])), r"optim/weight/step: .*\(1,\)"),
        (replace(RECORD, tensors={"param/weight": TENSORS["param/weight"]}), "only one of both"),
        (replace(RECORD, extra='{"lr": 1}'), "other values beside its tensors"),
    ],
)
def test_what_differs_is_named(other: LayerRecord, text: str) -> None:
    for one, another in ((RECORD, other), (other, RECORD)):
        found = _difference(4, one, another)
        assert found.startswith("layer 4")
    assert re.search(text, _difference(4, RECORD, other))


def test_minus_zero_differs() -> None:
    zero = LayerRecord({"param/bias": torch.tensor([0.0])}, "{}")
    other = LayerRecord({"param/bias": torch.tensor([-0.0])}, "{}")
    assert "differences is 0" in _difference(0, zero, other)


def test_a_run_that_ends_before_its_first_checkpoint_says_that_all_is_lost() -> None:
    text = "3 committed steps since the start are lost: no checkpoint is written yet"
    assert comparison.left(None, 2) == text


def test_a_run_without_a_committed_step_says_nothing_of_what_is_lost() -> None:
    assert comparison.left(None, -1) == ""


def test_a_run_that_ends_right_after_a_checkpoint_says_only_how_to_go_on() -> None:
    text = comparison.left(comparison.Final(3, "/f/step-00000003", "", (), ""), 2)
    assert text.startswith("3 committed steps in the checkpoint of step 3, /f/step-00000003: ")
    assert "lost" not in text
