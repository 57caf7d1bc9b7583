"""Micro-batches by index, equal on every agent, cached while they are in use.

A data set may draw random numbers from the global generators of torch, numpy and ``random``: they
are seeded before every sample.
"""

from __future__ import annotations

import copy
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from bamboo_agent.data.order import sample_indices
from bamboo_agent.device.random_state import sampling, seed_sample
from bamboo_agent.model import Dataset, FactoryError
from bamboo_agent.user_code import call_factory
from bamboo_core.api.spec import JobSpec

_REMEMBERED = 64
_FINGERPRINT_SAMPLES = 8


class DataTooSmallError(Exception):
    """The data set has fewer samples than the job needs."""


class SampleError(Exception):
    """The data set's code raised, or its samples do not fit together. The text says which."""


def _collate(values: list[Any]) -> Any:
    first = values[0]
    if isinstance(first, torch.Tensor):
        return torch.stack(values)
    if isinstance(first, tuple | list):
        return tuple(_collate([value[i] for value in values]) for i in range(len(first)))
    return torch.tensor(values)


def _to_device(value: Any, device: torch.device) -> Any:
    if isinstance(value, tuple):
        return tuple(_to_device(part, device) for part in value)
    return value.to(device)


def _build(spec: Any, seed: int) -> Dataset:
    dataset = call_factory(spec, seed=seed)
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        kind = type(dataset).__name__
        raise FactoryError(f"{spec.factory} returned a {kind}, not a data set with len() and []")
    try:
        len(dataset)
    except Exception as error:
        text = f"len() of what {spec.factory} returned: {type(error).__name__}: {error}"
        raise FactoryError(text) from error
    return dataset  # type: ignore[no-any-return]


@contextmanager
def _blaming(factory: str, indices: Sequence[int]) -> Iterator[None]:
    """Turn any exception of the data set's code into a SampleError."""
    try:
        yield
    except Exception as error:
        which = f"sample {indices[0]}" if len(indices) == 1 else f"samples {list(indices)}"
        text = f"{factory}, {which}: {type(error).__name__}: {error}"
        raise SampleError(text) from error


class Data:
    """The training and validation sets of a job, cut into micro-batches."""

    def __init__(self, spec: JobSpec, device: torch.device) -> None:
        """Build both sets. FactoryError, DataTooSmallError. Later calls may raise SampleError."""
        self._device, self._seed = device, spec.seed
        self._reading: Callable[[], AbstractContextManager[None]] = nullcontext
        self._size = spec.training.micro_batch_size
        self._microbatches = spec.training.microbatches
        self._training = _build(spec.data, spec.seed)
        validation = spec.data.validation
        self._validation = None if validation is None else _build(validation, spec.seed)
        self._names = [spec.data.factory, "" if validation is None else validation.factory]
        self._cache: OrderedDict[tuple[bool, int, int], tuple[Any, Any]] = OrderedDict()
        self._check(spec)

    def _check(self, spec: JobSpec) -> None:
        need = spec.training.global_batch_size
        if self.training_samples < need:
            raise DataTooSmallError(
                f"{spec.data.factory} gives {self.training_samples} samples, fewer than"
                f" globalBatchSize {need}; use more data or a smaller batch"
            )
        if self._validation is not None and self.validation_samples < self._size:
            raise DataTooSmallError(
                f"the validation set has {self.validation_samples} samples, fewer than"
                f" microBatchSize {self._size}; use more data or leave data.validation out"
            )

    @property
    def training_samples(self) -> int:
        """Samples in the training set."""
        return len(self._training)

    @property
    def validation_samples(self) -> int:
        """Samples in the validation set; 0 if there is none."""
        return 0 if self._validation is None else len(self._validation)

    def watched(self, reading: Callable[[], AbstractContextManager[None]]) -> Data:
        """The same data, with the same cache. ``reading()`` is entered while samples are read."""
        same = copy.copy(self)
        same._reading = reading
        return same

    def training(self, step: int, microbatch: int) -> tuple[Any, Any]:
        """(input, target) of a micro-batch of a step, on the device."""
        return self._fetch(False, step, microbatch)

    def validation(self, microbatch: int) -> tuple[Any, Any]:
        """(input, target) of a validation micro-batch, in the set's order, on the device."""
        return self._fetch(True, 0, microbatch)

    def _fetch(self, validating: bool, step: int, microbatch: int) -> tuple[Any, Any]:
        name = (validating, step, microbatch)
        found = self._cache.get(name)
        if found is None:
            found = self._load(validating, step, microbatch)
            self._cache[name] = found
            if len(self._cache) > _REMEMBERED:
                self._cache.popitem(last=False)
        return found

    def _load(self, validating: bool, step: int, microbatch: int) -> tuple[Any, Any]:
        if validating:
            first = microbatch * self._size
            indices = list(range(first, min(first + self._size, self.validation_samples)))
        else:
            indices = self.indices(step, microbatch)
        name = self._names[validating]
        with self._reading(), sampling(self._device), _blaming(name, indices):
            pairs = [self._sample(None if validating else step, i) for i in indices]
            whole = [_collate([pair[i] for pair in pairs]) for i in (0, 1)]
        return _to_device(whole[0], self._device), _to_device(whole[1], self._device)

    def _sample(self, step: int | None, index: int) -> tuple[Any, Any]:
        """A sample as it is in a step; step None: of the validation set."""
        dataset = self._validation if step is None else self._training
        assert dataset is not None
        seed_sample(self._seed, step, index, self._device)
        return dataset[index]

    def indices(self, step: int, microbatch: int) -> list[int]:
        """Samples of a training micro-batch."""
        return sample_indices(
            seed=self._seed,
            step=step,
            microbatch=microbatch,
            microbatches=self._microbatches,
            size=self._size,
            samples=self.training_samples,
        )

    def fingerprint(self) -> str:
        """Hash of the lengths and some samples of both sets, as they are in step 0.

        SampleError also if a sample differs when it is read again.
        """
        digest = hashlib.sha256()
        sets = ((0, self.training_samples), (None, self.validation_samples))
        for name, (step, count) in zip(self._names, sets, strict=True):
            digest.update(f"{count};".encode())
            for i in range(min(count, _FINGERPRINT_SAMPLES)):
                index = i * count // min(count, _FINGERPRINT_SAMPLES)
                digest.update(self._hash(name, step, index))
        return digest.hexdigest()

    def _hash(self, name: str, step: int | None, index: int) -> bytes:
        reads = [hashlib.sha256(), hashlib.sha256()]
        for digest in reads:
            with sampling(self._device), _blaming(name, [index]):
                _digest(self._sample(step, index), digest)
        first, second = (digest.digest() for digest in reads)
        if first != second:
            raise SampleError(
                f"{name}, sample {index}: it differs when it is read again; if it draws from a"
                " generator of its own, make that one in __getitem__ and seed it with a number"
                " from torch's, numpy's or random's global generator"
            )
        return first


def _digest(value: Any, digest: hashlib._Hash) -> None:
    if isinstance(value, tuple | list):
        for part in value:
            _digest(part, digest)
    elif isinstance(value, torch.Tensor):
        digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    else:
        digest.update(repr(value).encode())
