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
    torch.set_float32_matmul_precision("highest")
    make_deterministic()


def test_code_that_leaves_the_settings_alone_is_accepted():
    make_deterministic()
    check_deterministic(settings())


@pytest.mark.parametrize(("text", "threads"), [("", 1), ("1", 1), ("3", 3)])
def test_the_number_of_threads(monkeypatch, text, threads):
    monkeypatch.setenv("BAMBOO_THREADS", text)
    make_deterministic()
    found = torch.get_num_threads()
    monkeypatch.undo()
    assert found == threads


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", " 2", "٣", "10000", "9" * 5000])
def test_a_number_of_threads_that_is_none_is_the_users_error(monkeypatch, text):
    monkeypatch.setenv("BAMBOO_THREADS", text)
    with pytest.raises(
        FactoryError, match=r"^BAMBOO_THREADS in spec.worker.env is '.{0,40}'; set a"
    ):
        make_deterministic()
    monkeypatch.undo()


def warn_only():
    torch.use_deterministic_algorithms(True, warn_only=True)


def turn_off():
    torch.use_deterministic_algorithms(False)


def choose_by_speed():
    torch.backends.cudnn.benchmark = True


def round_products():
    torch.set_float32_matmul_precision("high")


def round_one_convolution():
    torch.backends.cudnn.conv.fp32_precision = "tf32"


@pytest.mark.parametrize(
    ("undo", "complaint"),
    [
        (turn_off, "remove its call of torch.use_deterministic_algorithms"),
        (warn_only, "has turned torch's deterministic algorithms off"),
        (round_products, "call of torch.set_float32_matmul_precision .* spec.training.precision"),
        (round_one_convolution, "has set how products of fp32 numbers are computed"),
        (choose_by_speed, "torch.backends.cudnn.benchmark, .* leave it False"),
    ],
)
def test_code_that_undoes_them_is_refused(undo, complaint):
    make_deterministic()
    before = settings()
    undo()
    with pytest.raises(FactoryError, match=complaint):
        check_deterministic(before)
