"""From a checkpoint of any grid to one set of weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from bamboo_agent.model import Model
from bamboo_agent.storage.checkpoint import CheckpointError
from bamboo_agent.user_code import told
from bamboo_agent.weight_files.outlines import LayerOutline, WeightsError, file_names, prefixed
from bamboo_agent.weight_files.sink import Folder, OneFile, Sink, placed
from bamboo_agent.weight_files.source import Source
from bamboo_agent.weights import layers
from bamboo_agent.weights.finding import Found
from bamboo_core.api.local_run import Moved, WeightsFormat, Written
from bamboo_core.api.spec import JobSpec

_PARTS = ("param/", "buffer/")
Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Target:
    """dtype: of floating-point tensors; None: as they are."""

    path: Path
    format: WeightsFormat
    dtype: torch.dtype | None = None
    force: bool = False


def export(
    found: Found, target: Target, spec: JobSpec | None, tell: Callable[[Moved], None]
) -> Written:
    """Write the weights of a checkpoint. spec: of its job, for a Hugging Face folder. WeightsError
    if the checkpoint is wrong, or is of another model, and if nothing can be written there."""
    manifest, notes = found.manifest, list[str]()
    with placed(target.path, force=target.force) as temporary:
        if target.format is WeightsFormat.HUGGINGFACE:
            if spec is None:
                raise WeightsError(
                    "the model's factory knows the config and the names of a Hugging Face folder:"
                    " give the job with -f job.yaml"
                )
            model = layers.model_of(spec)
            named: _LibraryNames | _OwnNames = _LibraryNames(model, spec, count=len(found.files))
            folder = Folder(temporary)
            if model.config is None:
                notes.append("the model's factory gives no config, so there is no config.json")
            else:
                folder.write_json("config.json", _config(model.config, target.dtype))
            sink: Sink = folder
        else:
            named = _OwnNames(found)
            sink = OneFile(temporary, is_torch=target.format is WeightsFormat.TORCH)
        for index, tensors in enumerate(_weights(found)):
            sink.add({n: _cast(t, target.dtype) for n, t in named.layer(index, tensors).items()})
            tell(Moved(index + 1, len(found.files)))
        sink.close()
    source = found.checkpoints.folder(manifest.attempt, manifest.step)
    return Written(str(target.path), source, len(sink.names), sink.num_bytes, notes)


def _weights(found: Found) -> Iterator[dict[str, torch.Tensor]]:
    """Each layer's parameters and buffers. The files' hashes are checked."""
    try:
        for record in found.checkpoints.read_layers(found.manifest, range(len(found.files))):
            yield {
                name.partition("/")[2]: tensor
                for name, tensor in record.tensors.items()
                if name.startswith(_PARTS)
            }
    except CheckpointError as error:
        raise WeightsError(f"{error}; choose another checkpoint with --step") from error


class _OwnNames:
    """Names as layers have them, or beginning with the layer."""

    def __init__(self, found: Found) -> None:
        headers = (Source(file).outlines for file in found.files)
        own = [[n.partition("/")[2] for n in sorted(x) if n.startswith(_PARTS)] for x in headers]
        self._names = file_names(own)

    def layer(self, index: int, tensors: Tensors) -> Tensors:
        """The tensors by their names in the file."""
        names = self._names[index]
        return {names[name]: tensors[name] for name in sorted(tensors)}


class _LibraryNames:
    """Names as the model's library has them, and no buffers that layers make themselves."""

    def __init__(self, model: Model, spec: JobSpec, *, count: int) -> None:
        if len(model.layers) != count:
            raise WeightsError(
                f"the checkpoint has {count} layers, and {spec.model.factory} makes"
                f" {len(model.layers)}: give the job that wrote it with -f"
            )
        self._outlines = list(layers.outlines(model, spec))
        self._model = model
        own = file_names([x.tensors.keys() - x.derived - x.copied for x in self._outlines])
        is_unique = all(name == place for names in own for name, place in names.items())
        self._names = [
            names | {n: n if is_unique else prefixed(index, n) for n in outline.copied}
            for index, (names, outline) in enumerate(zip(own, self._outlines, strict=True))
        ]
        self._written: set[str] = set()

    def layer(self, index: int, tensors: Tensors) -> Tensors:
        """The tensors by their names in the file."""
        outline = self._outlines[index]
        _check(index, outline, tensors)
        kept = {n: tensors[n] for n in outline.tensors if n not in outline.derived}
        if self._model.names is None:
            named = {self._names[index][name]: tensor for name, tensor in kept.items()}
            tied = {self._names[index][name] for name in outline.copied}
            if (self._model.config or {}).get("tie_word_embeddings") is True:
                # the library writes it once, too, and ties it again
                return {n: t for n, t in named.items() if n not in tied}
            # a tied parameter that has one name in both layers is the same there
            found = {n: t for n, t in named.items() if not (n in tied and n in self._written)}
            self._written |= named.keys()
            return found
        try:
            written = dict(self._model.names.write(index, kept))
        except Exception as error:
            raise WeightsError(
                f"layer {index}, {outline.kind}: the model's names.write raised {told(error)}"
            ) from error
        # views of one tensor cannot stand in a file
        return {name: tensor.detach().clone() for name, tensor in written.items()}


def _check(index: int, outline: LayerOutline, tensors: Tensors) -> None:
    differ = sorted(outline.tensors.keys() ^ tensors.keys())
    differ += [
        name
        for name, wanted in outline.tensors.items()
        if name in tensors and tuple(tensors[name].shape) != wanted.shape
    ]
    if differ:
        raise WeightsError(
            f"layer {index}, {outline.kind}: the checkpoint is not of this model, since"
            f" {', '.join(differ)} differ: give the job that wrote it with -f"
        )


def _config(config: Mapping[str, object], dtype: torch.dtype | None) -> dict[str, object]:
    return dict(config) if dtype is None else {**config, "dtype": str(dtype).split(".")[1]}


def _cast(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    return tensor if dtype is None or not tensor.is_floating_point() else tensor.to(dtype)
