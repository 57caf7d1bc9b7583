"""Samples are always the same, and have as many labels as the others."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bamboo_agent.datasets.synthetic import Images, Texts, Translations

SETS = {
    "images": Images(samples=8, size=8, classes=4),
    "causal": Texts(time=16, vocab=64),
    "masked": Texts(time=16, vocab=64, kind="masked"),
    "translations": Translations(time=8, vocab=64),
}


def flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, dict):
        return [part for key in sorted(value) for part in flat(value[key])]
    if isinstance(value, tuple):
        return [part for inner in value for part in flat(inner)]
    return [torch.as_tensor(value)]


@pytest.mark.parametrize("name", SETS)
def test_a_sample_is_always_the_same_and_differs_from_the_next(name: str) -> None:
    first, again, other = (flat(SETS[name][i]) for i in (3, 3, 4))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_masked_texts_hide_as_many_tokens_and_never_padding() -> None:
    for index in range(12):
        sample = SETS["masked"][index]
        places = sample["labels"] != -100
        assert int(places.sum()) == 2
        assert bool((sample["attention_mask"][places] == 1).all())
        assert int((sample["input_ids"] == 0).sum()) == int((sample["attention_mask"] == 0).sum())


def test_a_translation_is_its_source_backwards() -> None:
    (source, given), target = Translations(time=8, vocab=64)[0]
    assert target[:-1].tolist() == source.flip(0)[:-1].tolist()
    assert given[1:].tolist() == target[:-1].tolist()


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="kind 'wide' must be causal or masked"):
        Texts(kind="wide")
