"""Which losses are a mean of means, and which targets a loss leaves out."""

from __future__ import annotations

import re

import pytest
import torch
from torch.nn import functional

from bamboo_agent.losses.forms import LossError, LossForm
from bamboo_agent.payloads.flow import Flow
from bamboo_agent.setup.probe import losses
from bamboo_agent.setup.probe.refusal import RefusedError

CLASSES = 11


def cross_entropy(output, target):
    return functional.cross_entropy(output.flatten(0, 1), target.flatten())


def of_padding(output, target):
    return functional.cross_entropy(output.flatten(0, 1), target.flatten(), ignore_index=3)


def of_zeros(output, target):
    return functional.cross_entropy(output.flatten(0, 1), target.flatten(), ignore_index=0)


def of_the_last(output, target):
    last = CLASSES - 1
    return functional.cross_entropy(output.flatten(0, 1), target.flatten(), ignore_index=last)


def over_a_constant(output, target):
    total = functional.cross_entropy(output.flatten(0, 1), target.flatten(), reduction="sum")
    return total / target.numel()


def weighted(output, target):
    labels, weights = target
    each = functional.cross_entropy(output.flatten(0, 1), labels.flatten(), reduction="none")
    return (each * weights.flatten()).sum() / weights.sum()


def contrastive(output, target):
    rows = output.flatten(1)
    return functional.cross_entropy(rows @ rows.T, torch.arange(len(rows)))


def outer_squares(output, target):
    return (output[:, :1, 0] - target.float()).square().mean()


def outputs(dtype=torch.float32):
    torch.manual_seed(1)
    return Flow((torch.randn(2, 5, CLASSES, dtype=torch.float64).to(dtype),))


def labels(*masked, value=-100):
    torch.manual_seed(2)
    target = torch.randint(4, CLASSES, (2, 5))
    target.reshape(-1)[list(masked)] = value
    return target


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_mean_over_unequal_numbers_of_targets_is_refused(dtype):
    with pytest.raises(RefusedError, match=r"different numbers of them.* divide the sum"):
        losses.check_means(cross_entropy, outputs(dtype), (labels(), labels(1)))


@pytest.mark.parametrize(
    ("loss", "targets"),
    [
        (cross_entropy, (labels(), labels())),
        (cross_entropy, (labels(0), labels(7))),
        (of_padding, (labels(), labels(1, value=2))),
        (over_a_constant, (labels(), labels(1, 2, 3))),
        (contrastive, (labels(), labels(1))),
        (outer_squares, (labels(), labels(1))),
        (weighted, ((labels(), torch.ones(2, 5)), (labels(), torch.ones(2, 5)))),
    ],
    ids=["no_mask", "equal_masks", "a_class", "constant", "contrastive", "outer", "equal_weights"],
)
def test_a_loss_that_weighs_all_micro_batches_alike_is_accepted(loss, targets):
    losses.check_means(loss, outputs(), targets)


def test_weights_that_do_not_have_the_same_sum_are_refused():
    light = torch.full((2, 5), 0.5)
    with pytest.raises(RefusedError, match="different numbers"):
        losses.check_means(weighted, outputs(), ((labels(), torch.ones(2, 5)), (labels(), light)))


def test_a_micro_batch_without_any_target_is_refused():
    with pytest.raises(RefusedError, match=r"of micro-batch 1 is not a number\. If it is a mean"):
        losses.check_means(cross_entropy, outputs(), (labels(), labels(*range(10))))


@pytest.mark.parametrize(
    ("loss", "target", "ignored"),
    [
        (cross_entropy, labels(), [-100]),
        (cross_entropy, labels(0, 1, 2), [-100]),
        (of_padding, labels(0, 1, value=3), [3]),
        (of_zeros, labels(), [0]),
        (of_the_last, labels(), [CLASSES - 1]),
        (over_a_constant, labels(), []),
        (outer_squares, labels(), []),
        (contrastive, labels(), []),
    ],
)
def test_the_targets_that_a_loss_leaves_out_are_found(loss, target, ignored):
    assert losses.ignored_targets(loss, outputs(), target) == ignored


def test_a_mask_beside_the_labels_is_no_label():
    """Its zeros and ones are not what the loss leaves out."""
    target = labels(), torch.ones(2, 5, dtype=torch.int64)
    assert losses.ignored_targets(weighted, outputs(), target) == []


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (cross_entropy, True),
        (over_a_constant, True),
        (lambda output, target: output.square().sum(), False),
        (lambda output, target: output.square().sum() / 10, False),
        (contrastive, False),
    ],
)
def test_a_mean_is_told_from_a_sum(loss, expected):
    assert losses.is_mean(loss, outputs(), labels()) is expected


def test_targets_that_are_no_labels_are_left_alone():
    assert losses.ignored_targets(contrastive, outputs(), torch.zeros(2, 5)) == []


def counted(output, target):
    logits, tags = output.flatten(0, 1), target.flatten()
    return functional.cross_entropy(logits, tags, reduction="sum"), (tags != -100).sum()


def test_a_sum_with_its_count_may_have_any_number_of_targets():
    found = losses.try_loss(counted, outputs(), [labels(1, 2), labels()], (outputs(), labels(3)))
    assert found == losses.TriedLoss(LossForm(is_counted=True), 8, ())
    nothing = losses.try_loss(counted, outputs(), [labels(*range(10))], None)
    assert nothing.usual_count == 1


def test_metrics_do_not_hide_what_the_loss_leaves_out():
    def named(output, target):
        return {"loss": cross_entropy(output, target), "spread": output.std()}

    found = losses.try_loss(named, outputs(), [labels(), labels()], None)
    assert found.form == LossForm(metrics=(("spread", False),))
    assert (found.usual_count, found.ignored) == (1, (-100, None))
    with pytest.raises(RefusedError, match=r"different numbers of them.* return \(sum, count\)"):
        losses.try_loss(named, outputs(), [labels(), labels(1)], None)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_mean_with_its_count_is_refused(dtype):
    def wrong(output, target):
        return cross_entropy(output, target), (target != -100).sum()

    with pytest.raises(RefusedError, match=r"the loss returns \(mean, count\): twice the micro-"):
        losses.try_loss(wrong, outputs(dtype), [labels(2)], None)


def test_a_sum_that_is_not_a_number_is_refused():
    def wrong(output, target):
        return counted(output, target)[0] * float("nan"), 3

    with pytest.raises(RefusedError, match="for micro-batch 0 is not a number: return a sum"):
        losses.try_loss(wrong, outputs(), [labels(), labels()], None)


@pytest.mark.parametrize(
    ("targets", "validation", "place"),
    [
        ([labels(), labels(1)], None, "^micro-batch 1 of step 0: "),
        ([labels(), labels()], (outputs(), labels(1)), "^validation micro-batch 0: "),
    ],
)
def test_other_kinds_are_found_in_the_set_up(targets, validation, place):
    def changing(output, target):
        return {"loss": over_a_constant(output, target), **({"odd": 1} if -100 in target else {})}

    with pytest.raises(LossError, match=place + "the loss returns a mean, odd: a mean; the first"):
        losses.try_loss(changing, outputs(), targets, validation)


def squares_of_all(output, target):
    return functional.mse_loss(output, target)


@pytest.mark.parametrize("shape", [(4,), (1, 4), (3, 1, 1)])
def test_a_loss_that_compares_each_output_with_every_target_is_refused(shape):
    """Torch warns of it only."""
    given = Flow((torch.randn(4, 1),))
    text = (
        rf"outputs of the shape \(4, 1\) with targets of the shape {re.escape(str(shape))},"
        r" each output with every target: .* target.view_as\(output\)"
    )
    with pytest.raises(RefusedError, match=text):
        losses.try_loss(squares_of_all, given, [torch.randn(shape)], None)
    late = [torch.randn(4, 1), torch.randn(shape)]
    with pytest.raises(RefusedError, match=text):
        losses.try_loss(squares_of_all, given, late, None)
    with pytest.raises(RefusedError, match=text):
        losses.try_loss(squares_of_all, given, late[:1], (given, late[1]))


@pytest.mark.parametrize("shape", [(4, 1), (1,), (), (1, 1)])
def test_one_target_for_all_outputs_is_taken(shape):
    given = Flow((torch.randn(4, 1),))
    losses.try_loss(squares_of_all, given, [torch.randn(shape)], None)
