"""Micro-batches by index, equal on every agent, cached while they are in use.

A data set may draw random numbers from the global generators of torch, numpy and ``random``: they
are seeded before every sample.
"""

from __future__ import annotations

import copy
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice
from numbers import Integral
from typing import Any

import torch

from bamboo_agent.data.collate import collate, collated
from bamboo_agent.data.content import content_hash
from bamboo_agent.data.forms import MisfitError, check_dataset, listed, pair
from bamboo_agent.data.needs import Need, Part, Source
from bamboo_agent.data.order import permuted, sample_indices
from bamboo_agent.data.targets import TargetWatch, count_targets
from bamboo_agent.device.random_state import (
    key,
    sample_states,
    sampling,
    seed_collate,
    seed_sample,
)
from bamboo_agent.model import Dataset
from bamboo_agent.user_code import call_factory, told
from bamboo_core.api.spec import JobSpec

_REMEMBERED = 64
_SPREAD, _FURTHER = 8, 24  # samples of the fingerprints
_FURTHER_BYTES = 16 * 2**20


Note = Callable[[int | None], None]
Reading = Callable[[], AbstractContextManager[Note]]
"""Gives a context with what is called with each sample before it is read, and with None behind the
last one."""


def _nothing(sample: int | None) -> None:
    """Nobody watches."""


class DataTooSmallError(Exception):
    """The data set has fewer samples than the job needs."""


class SampleError(Exception):
    """The data set's code raised, or its samples do not fit together. The text says which."""


def _to_device(value: Any, device: torch.device) -> Any:
    if isinstance(value, Mapping):
        return {key: _to_device(part, device) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return tuple(_to_device(part, device) for part in value)
    return value.to(device) if isinstance(value, torch.Tensor) else value


@dataclass(frozen=True)
class _Set:
    """A data set, who made it, and its length."""

    factory: str
    dataset: Dataset
    count: int

    @property
    def own_collate(self) -> Callable[[list[Any]], Any] | None:
        """The data set's method that makes a micro-batch of samples; None: it has none."""
        own = getattr(self.dataset, "collate", None)
        return own if callable(own) else None

    def read(self, index: int) -> Any:
        """(input, target) of a sample, or the sample as it is for the data set's own ``collate``.
        SampleError if it cannot be read, or is not two parts."""
        try:
            sample = self.dataset[index]
            return sample if self.own_collate else pair(sample, f"sample {index}: it")
        except MisfitError as error:
            raise SampleError(f"{self.factory}, {error}") from error
        except (Exception, SystemExit) as error:
            text = f"{self.factory}, sample {index}: {told(error)}"
            if isinstance(error, IndexError | StopIteration) or _is_key(error, index):
                text += f"; if there is no sample {index}, len() must be less than {self.count}"
            if isinstance(error, SystemExit):
                text += "; reading a sample may not end the process: raise an error that says why"
            raise SampleError(text) from error

    def content_fingerprint(self) -> str:
        """A text that the data set says must be equal on all agents; empty: it says none.
        SampleError."""
        own = getattr(self.dataset, "content_fingerprint", None)
        try:
            return str(own()) if callable(own) else ""
        except (Exception, SystemExit) as error:
            raise SampleError(f"{self.factory}, content_fingerprint(): {told(error)}") from error

    def check_length(self) -> None:
        """SampleError if it has another length than at the start: its order would be another."""
        try:
            now = len(self.dataset)
        except (Exception, SystemExit) as error:
            raise SampleError(f"{self.factory}: len(): {told(error)}") from error
        if now != self.count:
            raise SampleError(
                f"{self.factory}: len() was {self.count} at the start and is {now} now; a data set"
                " must stay as it is: list its files once, in the factory"
            )

    def collate(self, samples: Sequence[Any], indices: Sequence[int]) -> tuple[Any, Any]:
        """(input, target) of a micro-batch, on the CPU unless the samples are elsewhere."""
        own = self.own_collate
        told_of = f"samples {listed(indices)}" if own is None else f"collate of {listed(indices)}"
        try:
            if own is not None:
                return collated(pair(own(list(samples)), "collate: what it returns"))
            inputs, targets = zip(*samples, strict=True)
            return collate(inputs, indices, "input"), collate(targets, indices, "target")
        except MisfitError as error:
            raise SampleError(f"{self.factory}, {error}") from error
        except (Exception, SystemExit) as error:
            raise SampleError(f"{self.factory}, {told_of}: {told(error)}") from error


def _build(spec: Any, seed: int, field: str) -> _Set:
    dataset = call_factory(spec, seed=seed, field=f"{field}.factory")
    return _Set(spec.factory, dataset, check_dataset(dataset, spec.factory))


class Data:
    """The training and validation sets of a job, cut into micro-batches."""

    def __init__(self, spec: JobSpec, device: torch.device) -> None:
        """Build both sets. FactoryError, DataTooSmallError. Later calls may raise SampleError."""
        self._device, self._seed = device, spec.seed
        self._reading: Reading = lambda: nullcontext(_nothing)
        self._other: Source | None = None  # None: this process reads
        self._size = spec.training.micro_batch_size
        self._microbatches = spec.training.microbatches
        self._training = _build(spec.data, spec.seed, "spec.data")
        validation = spec.data.validation
        self._validation = None
        if validation is not None:
            self._validation = _build(validation, spec.seed, "spec.data.validation")
        # copies of self share all of these
        self._cache: OrderedDict[tuple[int | None, int], dict[Part, Any]] = OrderedDict()
        self._hashes: dict[tuple[int | None, int], tuple[bytes, int]] = {}
        self.watches: list[TargetWatch] = []
        self._drew: dict[int, bool] = {}
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
        return self._training.count

    @property
    def validation_samples(self) -> int:
        """Samples in the validation set; 0 if there is none."""
        return 0 if self._validation is None else self._validation.count

    def watched(self, reading: Reading) -> Data:
        """The same data, with the same cache. ``reading()`` is entered while samples are read."""
        same = copy.copy(self)
        same._reading = reading
        return same

    def read_by(self, other: Source) -> None:
        """From now on another process reads what is needed."""
        self._other = other

    def watch_targets(self, ignored: int | None) -> None:
        """Compare the number of targets that count in what is loaded from now on.

        ``ignored`` is the value of integer targets that the loss, a mean, leaves out; None: it is a
        mean over all. The first
        micro-batch of each set says how many of a sample count. A later one with another number is
        an UnevenTargetsError of :meth:`training` or :meth:`validation`. SampleError.
        """
        first = count_targets(self.training(0, 0)[1], ignored, self._size)
        scored = None
        if self._validation is not None:
            scored = count_targets(self.validation(0)[1], ignored, self._size)
        self.watches.append(TargetWatch(ignored, first, scored))

    def training(self, step: int, microbatch: int) -> tuple[Any, Any]:
        """(input, target) of a micro-batch of a step, on the device."""
        found = self._fetch(Need(step, microbatch))
        return found[Part.INPUT], found[Part.TARGET]

    def validation(self, microbatch: int) -> tuple[Any, Any]:
        """(input, target) of a validation micro-batch, in the set's order, on the device."""
        found = self._fetch(Need(None, microbatch))
        return found[Part.INPUT], found[Part.TARGET]

    def part(self, part: Part, step: int | None, microbatch: int) -> Any:
        """One part of a micro-batch, on the device. step None: of the validation set."""
        return self._fetch(Need(step, microbatch, part))[part]

    def has(self, need: Need) -> bool:
        """Whether nothing needs to be read for it."""
        found = self._cache.get((need.step, need.microbatch), {})
        return all(part in found for part in need.parts)

    def _fetch(self, need: Need) -> Mapping[Part, Any]:
        name = need.step, need.microbatch
        if not self.has(need):
            read = self._read(need)
            found = self._cache.setdefault(name, {})
            found |= {part: _to_device(value, self._device) for part, value in read.items()}
            if len(self._cache) > _REMEMBERED:
                self._cache.popitem(last=False)
            return found
        return self._cache[name]

    def _read(self, need: Need) -> Mapping[Part, Any]:
        with self._reading() as note:
            if self._other is not None:
                return self._other.take(need)
            inputs, targets = self.made(need.step, need.microbatch, note)
        return {Part.INPUT: inputs, Part.TARGET: targets}

    def made(self, step: int | None, microbatch: int, note: Note = _nothing) -> tuple[Any, Any]:
        """(input, target) of a micro-batch, read by this process, where the samples are. step None:
        of the validation set. note: as in :data:`Reading`. SampleError, UnevenTargetsError."""
        source, indices = self._source(step), self._indices(step, microbatch)
        try:
            with sampling(self._device):
                source.check_length()
                inputs, targets = self._made(step, microbatch, indices, note)
        except SampleError as error:
            raise SampleError(f"{which(step, microbatch)}: {error}") from error.__cause__
        for watch in self.watches:
            watch.check(
                targets, len(indices), factory=source.factory, step=step, microbatch=microbatch
            )
        return inputs, targets

    def origin(self, step: int | None, microbatch: int) -> str:
        """Name who has made a micro-batch, and its samples, in words. step None: of the validation
        set."""
        samples = listed(self._indices(step, microbatch))
        return f"{self._source(step).factory}, samples {samples}"

    def _made(
        self,
        step: int | None,
        microbatch: int,
        indices: list[int],
        note: Note = _nothing,
    ) -> tuple[Any, Any]:
        """A micro-batch, read and made anew. Call it inside :func:`sampling`. note: as in
        :data:`Reading`."""
        samples = []
        for index in indices:
            note(index)
            samples.append(self._sample(step, index))
        note(None)
        seed_collate(self._seed, step, microbatch, self._device)
        return self._source(step).collate(samples, indices)

    def _indices(self, step: int | None, microbatch: int) -> list[int]:
        if step is not None:
            return self.indices(step, microbatch)
        first = microbatch * self._size
        return list(range(first, min(first + self._size, self.validation_samples)))

    def _source(self, step: int | None) -> _Set:
        """The training set; step None: the validation set."""
        source = self._validation if step is None else self._training
        assert source is not None
        return source

    def _sample(self, step: int | None, index: int) -> Any:
        """A sample as it is in a step; step None: of the validation set."""
        is_first = step is not None and index not in self._drew
        if is_first and index in _spread(self.training_samples):
            sample, self._drew[index] = self._sample_seen(step, index)
            return sample
        seed_sample(self._seed, step, index, self._device)
        return self._source(step).read(index)

    def _sample_seen(self, step: int | None, index: int) -> tuple[Any, bool]:
        """A sample, and whether it has moved a global generator."""
        seed_sample(self._seed, step, index, self._device)
        before = sample_states(self._device)
        sample = self._source(step).read(index)
        return sample, sample_states(self._device) != before

    def _check_draws(self, index: int) -> None:
        """SampleError if a training sample drew when it was first read, but not in another step.

        An agent that begins later would draw anew, where the others have what they kept.
        """
        if not self._drew[index]:
            return
        with sampling(self._device):
            _, draws = self._sample_seen(1, index)
        if not draws:
            raise SampleError(
                f"{self._training.factory}, sample {index}: it keeps what it drew when it was read"
                " first, where an agent that begins later draws anew; cache what comes before the"
                " random part, and draw in every read"
            )

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
        """Hash of the lengths and 8 samples of both sets, as they are in step 0; of what their own
        ``collate`` makes of the first micro-batch; and of what their ``content_fingerprint`` says.

        SampleError also if a sample or micro-batch differs when it is made again, or keeps what it
        drew.
        """
        digest = hashlib.sha256()
        for step, count in self._sets():
            digest.update(f"{count};".encode())
            for index in _spread(count):
                digest.update(self._read_twice(step, index)[0])
            if count:
                digest.update(self._collated_twice(step))
                digest.update(self._source(step).content_fingerprint().encode())
        return digest.hexdigest()

    def wide_fingerprint(self) -> str:
        """Hash of what :meth:`fingerprint` reads, and of up to 24 further samples of each set.

        It finds files that are listed in another order, or that differ, on other agents. The seed
        draws which samples. They are as many as have 16 MiB together if they are as large as those
        of the fingerprint, so agents agree how many. SampleError.
        """
        digest = hashlib.sha256()
        for step, count in self._sets():
            spread = _spread(count)
            known = [self._read_twice(step, index) for index in spread]
            size = sum(size for _, size in known) // max(1, len(known))
            keys = tuple(key("wide", self._seed, i) for i in range(4))
            order = (permuted(at, count, keys) for at in range(count))
            further = islice((i for i in order if i not in spread), _most_further(size))
            digest.update(f"{count};".encode())
            digest.update(b"".join(value for value, _ in known))
            for index in further:
                digest.update(self._hash(step, index)[0])
        return digest.hexdigest()

    def _sets(self) -> list[tuple[int | None, int]]:
        """Step 0 and None for the validation set, each with its number of samples."""
        return [(0, self.training_samples), (None, self.validation_samples)]

    def _read_twice(self, step: int | None, index: int) -> tuple[bytes, int]:
        known = self._hashes.get((step, index))
        if known is None:
            known = self._hash(step, index)
            if step is not None:
                self._check_draws(index)
            if known != self._hash(step, index):
                raise SampleError(
                    f"{self._source(step).factory}, sample {index}: it differs when it is read"
                    " again; if it draws from a generator of its own, make that one in __getitem__"
                    " and seed it with a number from torch's, numpy's or random's global generator"
                )
            self._hashes[step, index] = known
        return known

    def _collated_twice(self, step: int | None) -> bytes:
        """The hash of the first micro-batch that the set's own ``collate`` makes; empty: it has
        none."""
        source, indices = self._source(step), self._indices(step, 0)
        if source.own_collate is None:
            return b""
        made = []
        for _ in range(2):
            with sampling(self._device):
                both = self._made(step, 0, indices)
            made.append(content_hash(both, indices[0])[0])
        if made[0] != made[1]:
            raise SampleError(
                f"{source.factory}, collate of {listed(indices)}: what it makes differs when it is"
                " called again; let it depend on the samples alone, and draw from torch's, numpy's"
                " or random's global generator, which are seeded before"
            )
        return made[0]

    def _hash(self, step: int | None, index: int) -> tuple[bytes, int]:
        """The hash of a sample and its bytes."""
        source = self._source(step)
        with sampling(self._device):
            sample = self._sample(step, index)
        try:
            return content_hash(sample, index)
        except MisfitError as error:
            raise SampleError(f"{source.factory}, {error}") from error
        except (Exception, SystemExit) as error:
            text = f"{source.factory}, sample {index}: {told(error)}"
            raise SampleError(text) from error


def _is_key(error: BaseException, index: int) -> bool:
    """Whether a KeyError is about the sample's number, and not about a key of the user's."""
    if not isinstance(error, KeyError) or len(error.args) != 1:
        return False
    key = error.args[0]
    return isinstance(key, Integral) and not isinstance(key, bool) and key == index


def which(step: int | None, microbatch: int) -> str:
    """A micro-batch, as errors begin with it. step None: of the validation set."""
    if step is None:
        return f"validation micro-batch {microbatch}"
    return f"step {step}, micro-batch {microbatch}"


def _spread(count: int) -> list[int]:
    """8 samples at equal distances, or all if there are fewer."""
    return [i * count // min(count, _SPREAD) for i in range(min(count, _SPREAD))]


def _most_further(size: int) -> int:
    """Samples that the wide fingerprint adds. size: mean bytes of a sample."""
    return min(_FURTHER, _FURTHER_BYTES // max(1, size))
