"""Random samples of a fixed seed: images, texts and translations, to try models and measure them.

Sample i is always the same. The target follows from the input, so that a loss can fall.
"""

from __future__ import annotations

import torch

_MASKED = 0.15  # share of the tokens
_IGNORED = -100
_FIRST_WORD = 4  # tokens below have a meaning: padding, start, end, mask
_PADDING, _START, _END, _MASK = range(_FIRST_WORD)


def _generator(index: int) -> torch.Generator:
    return torch.Generator().manual_seed(index)


class Images:
    """(3, size, size) numbers, and one of ``classes`` classes, whose number is the brightness."""

    def __init__(self, *, samples: int = 4096, size: int = 224, classes: int = 1000) -> None:
        self._samples, self._size, self._classes = samples, size, classes

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        noise = torch.randn(3, self._size, self._size, generator=_generator(index))
        label = index % self._classes
        return noise + label / self._classes, label


class Texts:
    """``time`` tokens that mostly count upwards, for a causal or a masked model.

    kind "causal": the labels are the tokens themselves. "masked": 15 % of the tokens are hidden,
    and the labels of the others are -100; samples end with up to a quarter of padding, which an
    attention mask leaves out. All samples have as many labels.
    """

    def __init__(
        self, *, samples: int = 4096, time: int = 512, vocab: int = 30522, kind: str = "causal"
    ) -> None:
        if kind not in ("causal", "masked"):
            raise ValueError(f"kind {kind!r} must be causal or masked")
        self._samples, self._time, self._vocab, self._kind = samples, time, vocab, kind

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        generator = _generator(index)
        tokens = _counted(self._time, self._vocab, generator)
        if self._kind == "causal":
            return {"input_ids": tokens, "labels": tokens}
        length = self._time - index % (self._time // 4 + 1)
        hidden = torch.randperm(length, generator=generator)[: max(1, int(self._time * _MASKED))]
        labels = torch.full((self._time,), _IGNORED)
        labels[hidden] = tokens[hidden]
        tokens[hidden], tokens[length:] = _MASK, _PADDING
        mask = (torch.arange(self._time) < length).long()
        return {"input_ids": tokens, "attention_mask": mask, "labels": labels}


class Translations:
    """Sentences that end with up to a quarter of padding, and the same backwards, over and over, as
    a translation of ``time`` tokens. The input is (source, target so far)."""

    def __init__(self, *, samples: int = 4096, time: int = 50, vocab: int = 32000) -> None:
        self._samples, self._time, self._vocab = samples, time, vocab

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
        length = self._time - index % (self._time // 4 + 1)
        source = _counted(self._time, self._vocab, _generator(index))
        target = source[(length - 1 - torch.arange(self._time)) % length]
        source[length:], target[-1] = _PADDING, _END
        return (source, torch.cat((torch.tensor([_START]), target[:-1]))), target


def _counted(time: int, vocab: int, generator: torch.Generator) -> torch.Tensor:
    """Words that count upwards from a random one, a tenth of them replaced by random ones."""
    words = vocab - _FIRST_WORD
    first, noise = (torch.randint(words, (n,), generator=generator) for n in (1, time))
    is_noise = torch.rand(time, generator=generator) < 0.1
    return torch.where(is_noise, noise, (first + torch.arange(time)) % words) + _FIRST_WORD
