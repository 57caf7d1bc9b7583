"""Data sets of HuggingFace's library ``datasets``, from a folder or by name.

Rows become samples: a dict of columns as tensors, with the target under "labels". The library is
optional, and only this module imports it. Rows stay in its memory-mapped files.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from bamboo_agent import hub
from bamboo_agent.data.forms import LABELS, described
from bamboo_agent.user_code import load_factory, text_of, told

_SAVED = ("state.json", "dataset_dict.json")  # one of them is in what save_to_disk has written
_TOKENIZERS = (
    *("tokenizer.json", "vocab.json", "vocab.txt", "tokenizer.model", "spiece.model"),
    *("sentencepiece.bpe.model", "tekken.json"),
)
"""One of them is in most folders of a tokenizer."""
_MOST_FILES = 8
_IGNORED = -100
_NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)
_Collate = Callable[[list[Any]], Any]
_Encode = Callable[[Mapping[str, Any]], dict[str, Any]]


class Rows:
    """Sample i is row i, as a dict of columns and "labels". ``collate`` is None unless the rows
    are padded, or the user names a function."""

    def __init__(
        self, rows: Any, columns: Sequence[str], labels: str, encode: _Encode, collate: Any
    ) -> None:
        """rows: of the library, as tensors; labels: the column that is the target; encode: what
        makes the columns of a row."""
        self._rows, self._columns, self._labels, self._encode = rows, columns, labels, encode
        self.collate: _Collate | None = collate

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = self._encode(self._rows[index])
        sample = {name: row[name] for name in self._columns}
        return {**sample, LABELS: row[self._labels]} if self._labels in row else sample


class Padding:
    """Makes a micro-batch of dicts whose columns of tensors differ in length."""

    def __init__(self, values: Mapping[str, int | float], multiple: int, length: int | None):
        """values: what each column is padded with. The length is ``length``, or that of the longest
        sample, rounded up to a multiple."""
        self._values, self._multiple, self._length = values, multiple, length

    def __call__(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        padded = [x for x in samples[0] if x in self._values and samples[0][x].dim()]
        longest = max((len(sample[x]) for sample in samples for x in padded), default=0)
        length = self._length or -(-longest // self._multiple) * self._multiple
        return {
            name: self._row(name, [x[name] for x in samples], length if name in padded else None)
            for name in samples[0]
        }

    def _row(self, name: str, parts: list[Any], length: int | None) -> torch.Tensor:
        if length is not None:
            parts = [self._fit(name, part, length) for part in parts]
        try:
            return torch.stack(parts)
        except (TypeError, RuntimeError) as error:
            kinds = sorted({described(part) for part in parts})
            raise ValueError(
                f"column {name!r} holds {' and '.join(kinds)}; give it a value in pad, or leave it"
                " out of columns"
            ) from error

    def _fit(self, name: str, part: torch.Tensor, length: int) -> torch.Tensor:
        made = part.new_full((length, *part.shape[1:]), self._values[name])
        made[: len(part)] = part[:length]
        return made


def build(
    path: str,
    split: str | None = None,
    config: str | None = None,
    revision: str | None = None,
    columns: Sequence[str] | None = None,
    labels: str | None = None,
    pad: Mapping[str, int | float] | None = None,
    multiple: int = 1,
    length: int | None = None,
    tokenizer: str | None = None,
    text: str = "text",
    collate: str | None = None,
) -> Rows:
    """Rows of a data set of HuggingFace as samples.

    path: a folder that ``save_to_disk`` has written, or whatever ``load_dataset`` takes: a folder
    of parquet, JSON, CSV, text or image files, or a name of the hub, with ``config`` and
    ``revision``. columns: the inputs, all but the target unless they are named. labels: the column
    that is the target, "labels" unless it is named; it may be an input, too. pad: the value that
    each column of unequal lengths is padded with, to the longest sample of the micro-batch rounded
    up to ``multiple``, or to ``length``, which also cuts. tokenizer: a folder or name for
    ``transformers``; the inputs are what it makes of the column ``text``, padded as it says, and
    the target is the tokens themselves, with -100 where they are padded, unless ``labels`` names a
    column. collate: ``module:function``, which gets the list of samples, as
    :class:`bamboo_agent.model.Dataset` says.

    ImportError says what to install; ValueError and OSError what cannot be loaded, HubError what
    cannot be downloaded.
    """
    if multiple < 1 or (length is not None and length < 1):
        raise ValueError(f"multiple {multiple} and length {length} must be at least 1")
    if pad is not None and collate is not None:
        raise ValueError("pad and collate both make micro-batches; name one of them")
    rows = _load(path, split, config, revision)
    encode: _Encode = dict
    if tokenizer is not None:
        _named(dict.fromkeys(rows.column_names), [text])
        reader = _Tokenizer(tokenizer, text, length)
        encode, pad = reader, pad or (None if collate else reader.padding())
        columns, labels = columns or reader.names, labels or "input_ids"
    elif pad is None and (multiple > 1 or length is not None):
        raise ValueError('multiple and length need pad, such as pad: {"input_ids": 0}')
    rows = rows.with_format("torch")
    if not len(rows):
        raise ValueError(f"{path} has no rows")
    first, target = encode(rows[0]), labels or LABELS
    own = None if collate is None else load_factory(collate, seed=0)
    if own is None and target not in first:
        raise ValueError(f"{path} has no column {target!r}; {_columns(first)}; name labels")
    inputs = columns if columns is not None else [x for x in first if x not in (target, LABELS)]
    _named(first, inputs)
    if own is None:
        _check_tensors(path, {name: first[name] for name in (*inputs, target)})
    made = None if pad is None else Padding(pad, multiple, length)
    return Rows(rows, inputs, target, encode, own or made)


class _Tokenizer:
    """Adds to a row what a tokenizer of transformers makes of its text."""

    def __init__(self, name: str, text: str, length: int | None) -> None:
        try:
            from transformers import AutoTokenizer
        except ImportError as error:
            raise ImportError(_missing("transformers", error)) from error
        try:
            with hub.asked("args.tokenizer", name):
                self._made = AutoTokenizer.from_pretrained(name)
        except hub.HubError:
            raise
        except Exception as error:
            raise OSError(
                f"args.tokenizer {name!r} cannot be loaded: name a folder of save_pretrained that"
                f" all agents have, or a name of the hub: {_lacking(name) or _line(error)}"
            ) from error
        self._text, self._length = text, length
        self.names: list[str] = list(self._made("a"))

    def __call__(self, row: Mapping[str, Any]) -> dict[str, Any]:
        made = self._made(
            row[self._text], truncation=self._length is not None, max_length=self._length
        )
        return {**row, **{name: torch.tensor(made[name], dtype=torch.int64) for name in self.names}}

    def padding(self) -> dict[str, int | float]:
        found = (self._made.pad_token_id, self._made.eos_token_id)
        first = next((x for x in found if x is not None), 0)
        return {**dict.fromkeys(self.names, 0), "input_ids": first, LABELS: _IGNORED}


def _lacking(name: str) -> str:
    """Why this is no folder of a tokenizer; empty: it may be one, or a name of the hub."""
    folder = Path(name)
    if not folder.is_dir():
        is_path = name.startswith(("/", ".", "~")) and not folder.exists()
        return "there is no such folder" if is_path else ""
    files = sorted(x.name for x in folder.iterdir())
    if not set(_TOKENIZERS).isdisjoint(files):
        return ""
    shown = ", ".join(files[:_MOST_FILES]) or "no files"
    more = f" and {len(files) - _MOST_FILES} more" if len(files) > _MOST_FILES else ""
    return f"the folder has {shown}{more}, and so no {', '.join(_TOKENIZERS)}"


def _load(path: str, split: str | None, config: str | None, revision: str | None) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise ImportError(_missing("datasets", error)) from error
    if not hasattr(datasets, "load_from_disk"):
        raise ImportError(
            f"{list(datasets.__path__)} hides HuggingFace's library datasets: rename this folder"
        )
    datasets.disable_progress_bars()
    is_saved = any(Path(path, name).is_file() for name in _SAVED)
    try:
        if is_saved:
            found = datasets.load_from_disk(path)
        else:
            with hub.asked("args.path", path):
                found = datasets.load_dataset(path, config, split=split, revision=revision)
    except hub.HubError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _NOT_WRITABLE:
            raise OSError(
                f"{told(error)}: set HF_HOME in spec.worker.env to a folder that agents may write,"
                " such as /tmp/huggingface"
            ) from error
        kind = OSError if isinstance(error, OSError) else ValueError
        raise kind(f"data set {path!r} cannot be loaded: {_line(error)}") from error
    return _one(path, found, split, is_saved)


def _one(path: str, found: Any, split: str | None, is_saved: bool) -> Any:
    """The data set of a split, among what the library has loaded."""
    if not isinstance(found, dict):
        if split is not None and is_saved:
            raise ValueError(f"{path} is one data set without splits; leave split out")
        return found
    if split is None and len(found) == 1:
        return next(iter(found.values()))
    if split not in found:
        raise ValueError(f"{path} has the splits {', '.join(found)}, not {split}; name one")
    return found[split]


def _columns(row: Mapping[str, Any]) -> str:
    return f"its columns are {', '.join(row)}"


def _named(row: Mapping[str, Any], names: Sequence[str]) -> None:
    for name in names:
        if name not in row:
            raise ValueError(f"there is no column {name!r}; {_columns(row)}")


def _check_tensors(path: str, row: Mapping[str, Any]) -> None:
    for name, value in row.items():
        if not isinstance(value, torch.Tensor):
            raise ValueError(
                f"column {name!r} of {path} is {described(value)}, not numbers; name columns"
                " without it, a tokenizer for its text, or a collate"
            )


def _line(error: Exception) -> str:
    """The error's type and the first line of its text."""
    return told(error).splitlines()[0]


def _missing(library: str, error: ImportError) -> str:
    return (
        f"the library {library} cannot be imported ({text_of(error)}); add it to the image of"
        f" spec.worker.image: pip install {library}"
    )
