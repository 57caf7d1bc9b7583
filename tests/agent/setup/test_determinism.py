"""The settings under which equal inputs give equal bits, and code that undoes them."""

from __future__ import annotations

import pytest
import torch

from bamboo_agent.model import FactoryError
from bamboo_agent.setup.determinism import check_deterministic, make_deterministic, settings


@pytest.fixture(autouse=True)
def set_again():
    yield
    torch.backends.cudnn.benchmark = False
    make_deterministic()


def test_code_that_leaves_the_settings_alone_is_accepted():
    make_deterministic()
    check_deterministic(settings())


def warn_only():
    torch.use_deterministic_algorithms(True, warn_only=True)


def turn_off():
    torch.use_deterministic_algorithms(False)


def choose_by_speed():
    torch.backends.cudnn.benchmark = True


@pytest.mark.parametrize(
    ("undo", "complaint"),
    [
        (turn_off, "remove its call of torch.use_deterministic_algorithms"),
        (warn_only, "has turned torch's deterministic algorithms off"),
        (choose_by_speed, "torch.backends.cudnn.benchmark, .* leave it False"),
    ],
)
def test_code_that_undoes_them_is_refused(undo, complaint):
    make_deterministic()
    before = settings()
    undo()
    with pytest.raises(FactoryError, match=complaint):
        check_deterministic(before)
