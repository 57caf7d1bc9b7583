"""What an arbiter knows of its last checkpoint, which cannot be written."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from bamboo_core.model.ids import AgentId


class LastWrite(NamedTuple):
    """A durable fact: the checkpoint with which the attempt ends is to be written again."""

    step: int
    why: str = ""  # which agent, where, and the error
    waited_s: float = 0.0  # attentive time, up to the newest try
    suspended_s: float | None = None  # of that, before the job was to be suspended; None: it is not


@dataclass
class Rewriting:
    """This leader's tries."""

    tries: int = 0
    at: float = -inf  # before which the next one must not begin
    since: float = inf  # up to when ``LastWrite.waited_s`` counts; inf: it does not count yet
    left_s: float = inf  # until the deadline, at the newest event
    going: frozenset[AgentId] = frozenset()  # holders for whose notice a plan was made
    layers: tuple[int, ...] = ()  # of which no member has written its file
