"""The digest of products shows another processor, and leaves no trace."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import numpy as np
import pytest
import torch

from bamboo_agent.setup import products as subject
from bamboo_agent.setup.products import PRODUCTS, products

CPU = torch.device("cpu")


def flipped(tensor: torch.Tensor) -> torch.Tensor:
    """With another last bit in its last element."""
    raw = tensor.contiguous().flatten().view(torch.uint8).clone()
    raw[-tensor.element_size()] ^= 1
    return raw.view(tensor.dtype)


def test_the_same_processor_gives_the_same_digest_in_another_process():
    code = (
        "import torch; from bamboo_agent.setup.products import products;"
        "print(products(torch.device('cpu')))"
    )
    other = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=os.environ
    ).stdout.strip()
    assert products(CPU) == products(CPU) == other


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("name", PRODUCTS)
def test_one_bit_of_one_product_changes_it(name, dtype, monkeypatch):
    before, make = products(CPU), PRODUCTS[name]

    def other(generator, given, device):
        found = make(generator, given, device)
        return flipped(found) if given is dtype else found

    monkeypatch.setitem(PRODUCTS, name, other)
    assert products(CPU) != before


def test_one_bit_of_numpys_product_changes_it(monkeypatch):
    before, make = products(CPU), subject._numpy_bits
    monkeypatch.setattr(subject, "_numpy_bits", lambda: make()[:-1] + b"x")
    assert products(CPU) != before


def test_another_order_of_a_sum_changes_it(monkeypatch):
    """Another processor does that. The inputs must have all their bits in use to show it."""
    before, changed = products(CPU), 0
    for dtype in subject._DTYPES:

        def other(generator, given, device, wanted=dtype):
            left = subject._random(generator, given, device, 129, 257)
            right = subject._random(generator, given, device, 257, 65)
            if given is not wanted:
                return left @ right
            half = 128
            return left[:, :half] @ right[:half] + left[:, half:] @ right[half:]

        with monkeypatch.context() as patch:
            patch.setitem(PRODUCTS, "matrix", other)
            changed += products(CPU) != before
    assert changed == len(subject._DTYPES)


def test_the_global_generators_and_threads_stay_as_they_are():
    torch.manual_seed(1)
    np.random.seed(2)
    random.seed(3)
    threads = torch.get_num_threads()
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    try:
        torch.set_num_threads(2)
        first = products(CPU)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()
    assert random.getstate() == before[2]
    torch.manual_seed(9)
    assert products(CPU) == first, "it depends on the global generator or on the threads"


def test_a_type_that_the_device_cannot_compute_is_left_out(monkeypatch):
    def cannot(generator, dtype, device):
        if dtype is torch.float16:
            raise NotImplementedError("\"softmax\" not implemented for 'Half'")
        return torch.ones(1)

    monkeypatch.setitem(PRODUCTS, "softmax", cannot)
    assert products(CPU) == products(CPU)


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("no memory"), RuntimeError("cuDNN error")]
)
def test_a_broken_device_is_no_other_processor(error, monkeypatch):
    def breaks(generator, dtype, device):
        raise error

    monkeypatch.setitem(PRODUCTS, "convolution", breaks)
    with pytest.raises(type(error)):
        products(CPU)
