"""What is compared with what, and in which order. Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class System(StrEnum):
    BAMBOO = "Bamboo"
    PIPELINE = "a pipeline with checkpoints"
    TORCHRUN = "torchrun"
    TORCHFT = "torchft"


class Newcomer(StrEnum):
    """When the place of the lost worker is filled."""

    AFTER = "after the pause"
    AT_ONCE = "with the loss"
    ITSELF = "by the system"


@dataclass(frozen=True)
class Variant:
    """One system with one choice of settings; beside: shown beside the three that are compared."""

    name: str
    system: System
    newcomer: Newcomer
    beside: bool = False
    forked: bool = True  # new workers are forked from a process that has loaded torch
    tuned: bool = False  # the shortest time-outs that work

    def kills(self, wanted: int) -> int:
        """How many losses, if the compared ones get ``wanted``: a quarter for those beside them."""
        return -(-wanted // 4) if self.beside else wanted


VARIANTS = (
    Variant("bamboo", System.BAMBOO, Newcomer.AFTER),
    Variant("torchft_tuned", System.TORCHFT, Newcomer.AFTER, tuned=True),
    Variant("torchrun_forked", System.TORCHRUN, Newcomer.ITSELF),
    Variant("bamboo_at_once", System.BAMBOO, Newcomer.AT_ONCE, beside=True),
    Variant("pipeline_checkpoint", System.PIPELINE, Newcomer.AT_ONCE, beside=True),
    Variant("torchft_tuned_at_once", System.TORCHFT, Newcomer.AT_ONCE, beside=True, tuned=True),
    Variant("torchft_defaults", System.TORCHFT, Newcomer.AFTER, beside=True),
    Variant("torchft_defaults_at_once", System.TORCHFT, Newcomer.AT_ONCE, beside=True),
    Variant("torchrun_standard", System.TORCHRUN, Newcomer.ITSELF, beside=True, forked=False),
)
BY_NAME = {variant.name: variant for variant in VARIANTS}


def chosen(words: str) -> tuple[Variant, ...]:
    """Variants with one of the words, separated by commas, in their names; a whole name means that
    variant only. ValueError if a word matches none."""
    found = set[str]()
    for word in words.split(","):
        names = {word} & BY_NAME.keys() or {name for name in BY_NAME if word in name}
        if not names:
            raise ValueError(f"--only {word} matches nothing; there are: {', '.join(BY_NAME)}")
        found |= names
    return tuple(variant for variant in VARIANTS if variant.name in found)


def order(
    variants: Sequence[Variant], wanted: int, done: Mapping[str, int], seed: int
) -> list[Variant]:
    """The losses that are left, interleaved: each round has one of each variant, in random order.

    A variant beside the compared ones takes part in every fourth round. done: losses so far by name
    of the variant.
    """
    left = list[Variant]()
    for number in range(wanted):
        turn = [
            variant
            for variant in variants
            if done.get(variant.name, 0) <= _number(variant, number) < variant.kills(wanted)
        ]
        random.Random(f"{seed}/{number}").shuffle(turn)
        left += turn
    return left


def _number(variant: Variant, turn: int) -> float:
    """Which of its losses a variant takes in a round; infinity: none."""
    if not variant.beside:
        return turn
    return turn // 4 if turn % 4 == 0 else float("inf")
