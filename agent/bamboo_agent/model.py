"""What users provide: a model as an ordered list of layers, and data sets.

``spec.model.factory`` names a function that returns a :class:`Model`; ``spec.data.factory`` one
that returns a map-style data set of ``(input, target)`` pairs. Every worker calls both with
``args`` as keyword arguments. They must return the same everywhere: the generators of torch, numpy
and ``random`` are seeded before (:mod:`bamboo_agent.user_code`), and the fingerprint checks it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from bamboo_agent.factory_names import FactoryError as FactoryError


@dataclass(frozen=True)
class Names:
    """How a library's files name and shape the weights of each layer, both ways.

    Both functions get the number of the layer. They may rename, reshape, transpose, split and join
    tensors, and read one for two layers. Layers that keep the library's own names need none.
    """

    # (layer, its tensors by name) -> tensors by their name in the library's files
    write: Callable[[int, Mapping[str, torch.Tensor]], Mapping[str, torch.Tensor]]
    # (layer, the file's tensors by name, each read when it is looked up) -> the layer's, by name
    read: Callable[[int, Mapping[str, torch.Tensor]], Mapping[str, torch.Tensor]]


@dataclass(frozen=True)
class Model:
    """An ordered list of layers and a loss.

    The first layer is called with the input of the micro-batch, every other one with the output of
    the layer before. A tuple or list becomes several arguments; a dict is one. An output has a
    tensor at least; beside it may be None, numbers, texts, and tuples, lists and dicts of these.
    A layer may depend only on its arguments, parameters, buffers and torch's random state.
    """

    # each builds one layer; the generators are seeded by (seed, layer), so any agent can build any
    layers: Sequence[Callable[[], nn.Module]]
    # (last output, target) -> one of
    # - the mean over the micro-batch, a scalar tensor;
    # - (sum, count): the sum over targets, a scalar tensor, and their number, which may be 0. The
    #   step's loss is the sum over the number of targets of the global batch;
    # - a dict with one of both as "loss". Its other keys name metrics: numbers or scalar tensors,
    #   means over the micro-batch, or (sum, count). They are shown, and not trained.
    # The same kinds and names for every micro-batch, in validation, too.
    loss: Callable[[Any, Any], Any]
    # each entry: parameters of different layers that are one, as (layer, name in the layer)
    ties: Sequence[Sequence[tuple[int, str]]] = ()
    # for files of weights; None: a layer's own names
    names: Names | None = None
    # config.json of a Hugging Face folder; None: there is none
    config: Mapping[str, Any] | None = None
    # (input, target) of a micro-batch -> why this loss would take it wrongly, and what to change;
    # empty: it does not. The set-up asks for the first micro-batch; None: nothing to ask
    misfit: Callable[[Any, Any], str] | None = None


class Dataset(Protocol):
    """Map-style: ``dataset[i]`` gives (input, target), or a dict whose "labels" are the target.

    Each of the two is a tensor, a numpy array, a number, None, or a tuple or dict of those; a list
    counts as a tuple. A micro-batch has one tensor for each part: tensors and arrays are stacked,
    numbers become a vector, a tuple stays a tuple and a dict a dict of tensors. So the samples of a
    micro-batch have equal shapes and dtypes: pad or crop them in ``__getitem__``. A tensor that
    requires grad is refused, since only layers are trained. The length stays as it is.

    A data set with a method ``collate(samples)`` makes micro-batches itself: it gets the list of
    samples, of any kind, and returns (input, target) or a dict with "labels". It may draw from the
    global generators, which are seeded by (seed, step, micro-batch) before.

    A sample may depend on its index and on torch's, numpy's and ``random``'s global generators,
    which are seeded before every sample: by (seed, step, index), for validation by (seed, index). A
    data set that makes a generator makes it in ``__getitem__``, with a seed from a global one:
    ``np.random.default_rng(np.random.randint(2**31))``.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> tuple[Any, Any]: ...
