"""A digest of a few products of this processor and its libraries.

Processors of one name and libraries of one version may still sum in another order, as other kinds
behind one instance type do. The bits of the same products show it before the training does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from torch.nn import functional

_SEED = 33
_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_ROWS, _INNER, _COLUMNS = 129, 257, 65  # whole blocks of the kernels, and their edges
_LONG = 10_007
_ABSENT = b"the device cannot"

Product = Callable[[torch.Generator, torch.dtype, torch.device], torch.Tensor]
"""The generator is on the CPU; the result is on the device."""


def _random(
    generator: torch.Generator, dtype: torch.dtype, device: torch.device, *shape: int
) -> torch.Tensor:
    """Numbers between -2 and 2, with all their bits in use. They are made from integers, so that
    they are the same on all processors."""
    whole = torch.randint(-(2**52), 2**52, shape, generator=generator)
    return (whole.double() * 2.0**-51).to(dtype).to(device)


def _matrix(generator: torch.Generator, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    left = _random(generator, dtype, device, _ROWS, _INNER)
    return left @ _random(generator, dtype, device, _INNER, _COLUMNS)


def _batch(generator: torch.Generator, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    left = _random(generator, dtype, device, 3, 33, 67)
    return torch.bmm(left, _random(generator, dtype, device, 3, 67, 17))


def _convolution(
    generator: torch.Generator, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    image = _random(generator, dtype, device, 2, 5, 19, 17)
    return functional.conv2d(image, _random(generator, dtype, device, 7, 5, 3, 3), padding=1)


def _softmax(generator: torch.Generator, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.softmax(_random(generator, dtype, device, 13, 101), dim=-1)


def _norm(generator: torch.Generator, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return functional.layer_norm(_random(generator, dtype, device, 13, 101), (101,))


def _exp(generator: torch.Generator, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    values = _random(generator, dtype, device, 1009)
    return torch.stack((values.exp(), values.tanh(), values.sigmoid()))


def _sum(generator: torch.Generator, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return _random(generator, dtype, device, _LONG).sum()


PRODUCTS: Mapping[str, Product] = {
    "matrix": _matrix,
    "batch": _batch,
    "convolution": _convolution,
    "softmax": _softmax,
    "norm": _norm,
    "exp": _exp,
    "sum": _sum,
}
"""By name; each in every type of :data:`_DTYPES` that the device can compute."""


def products(device: torch.device) -> str:
    """Digest of the products on the device.

    On the CPU numpy's count, too. The hosts of equal GPUs may differ: if that changes samples, the
    digest of the data shows it. One thread is used, so that the number of threads has no part in
    it. The global generators are neither read nor changed.
    """
    generator = torch.Generator()
    digest = hashlib.sha256()
    with _one_thread(), torch.no_grad():
        for name, make in PRODUCTS.items():
            for dtype in _DTYPES:
                generator.manual_seed(_SEED)
                digest.update(f"{name} {dtype}\0".encode() + _bits(make, generator, dtype, device))
    if device.type == "cpu":
        digest.update(_numpy_bits())
    return digest.hexdigest()


def _bits(
    make: Product, generator: torch.Generator, dtype: torch.dtype, device: torch.device
) -> bytes:
    try:
        found = make(generator, dtype, device)
    except RuntimeError as error:
        if "not implemented for" not in str(error) and "not support" not in str(error):
            raise  # the device is broken, or has no memory left
        return _ABSENT
    return found.contiguous().flatten().view(torch.uint8).cpu().numpy().tobytes()


def _numpy_bits() -> bytes:
    """A matrix product of numpy, which has its own libraries. Data sets and losses use it."""
    generator, cpu = torch.Generator().manual_seed(_SEED), torch.device("cpu")
    left = _random(generator, torch.float64, cpu, _ROWS, _INNER).numpy()
    right = _random(generator, torch.float64, cpu, _INNER, _COLUMNS).numpy()
    single = left.astype(np.float32) @ right.astype(np.float32)
    return bytes(single.tobytes() + (left @ right).tobytes())


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
