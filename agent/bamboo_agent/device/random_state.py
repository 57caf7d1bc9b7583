"""Random state that depends on the computation, never on the agent that runs it.

The generators are seeded before every layer's forward by (seed, step, micro-batch, layer), so a
forward that is repeated on any agent draws the same numbers. Initial weights: by (seed, layer).
Modules and factories of the user: by (seed, name). A sample of the training set: by (seed, step,
index); one of the validation set: by (seed, index). A micro-batch that the data set collates: by
(seed, step, micro-batch). An update: by (seed, step, layer).
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

_NUMPY_FOR_SAMPLES = np.random.MT19937(0)
"""numpy's global functions draw from it while samples are loaded: to copy the state of their own
generator takes 90 microseconds."""


def key(*parts: int | str) -> int:
    """A 64-bit hash of the parts."""
    text = "/".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def seed_forward(seed: int, step: int, microbatch: int, layer: int, device: torch.device) -> None:
    """Seed the generators that the layer may use: the CPU's and the device's."""
    _set(key("forward", seed, step, microbatch, layer), device)


def seed_weights(seed: int, layer: int) -> None:
    """Seed all generators before a layer is built."""
    _set_all(key("weights", seed, layer))


def seed_update(seed: int, step: int, layer: int) -> None:
    """Seed all generators before a layer is updated: an optimizer may round at random."""
    _set_all(key("update", seed, step, layer))


def seed_code(seed: int, *words: str) -> None:
    """Seed all generators before the user's code runs. words: which code."""
    _set_all(key("code", seed, *words))


def seed_sample(seed: int, step: int | None, index: int, device: torch.device) -> None:
    """Seed torch's, numpy's and Python's global generators before a sample is read.

    step: None for the validation set, whose samples are the same every time. Call it inside
    :func:`sampling`.
    """
    parts = ("validation", seed, index) if step is None else ("sample", seed, step, index)
    value = key(*parts)
    _set(value, device)
    _set_python(value)


def seed_collate(seed: int, step: int | None, microbatch: int, device: torch.device) -> None:
    """Seed the generators before a data set makes a micro-batch of its samples: it may mask some.

    step: None for the validation set. Call it inside :func:`sampling`.
    """
    parts = ("mask", seed, microbatch) if step is None else ("collate", seed, step, microbatch)
    value = key(*parts)
    _set(value, device)
    _set_python(value)


def sample_states(device: torch.device) -> tuple[Any, ...]:
    """The states of the generators that a sample may use, to be compared. Call it inside
    :func:`sampling`."""
    numpys = _NUMPY_FOR_SAMPLES.state["state"]
    generators = [torch.default_generator]
    if device.type == "cuda":
        generators.append(torch.cuda.default_generators[device.index or 0])
    torches = [generator.get_state().numpy().tobytes() for generator in generators]
    return *torches, numpys["key"].tobytes(), numpys["pos"], random.getstate()


@contextmanager
def sampling(device: torch.device) -> Iterator[None]:
    """Put the process's generators back afterwards: as if no sample had drawn anything.

    Only a second normal number that numpy may have kept from an earlier draw is forgotten.
    """
    generators = [torch.default_generator]
    if device.type == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call]
        generators.append(torch.cuda.default_generators[device.index or 0])
    states = [generator.get_state() for generator in generators]
    pythons = random.getstate()
    numpys = np.random.get_bit_generator()  # type: ignore[attr-defined]
    np.random.set_bit_generator(_NUMPY_FOR_SAMPLES)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        np.random.set_bit_generator(numpys)  # type: ignore[attr-defined]
        random.setstate(pythons)
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


def _set_all(value: int) -> None:
    _set(value, torch.device("cpu"))
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(value)
    _set_python(value)


def _set_python(value: int) -> None:
    np.random.seed(value & 0xFFFFFFFF)  # a longer seed takes six times as long
    random.seed(value)


def _set(value: int, device: torch.device) -> None:
    torch.default_generator.manual_seed(value)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(value)
