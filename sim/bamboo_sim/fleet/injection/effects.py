"""The effects of a fleet's faults: each injector counts the moments in which its fault has acted.

An injector that changes nothing, because the code that it patches has another name now, would
otherwise go unnoticed. Agents append a line to a file of their own for each effect, in one call
and before they kill themselves, so a SIGKILL loses nothing. The fleet's own process counts in
memory.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

OPERATOR = "operator"
"""Stands for the operator where effects are counted by agent."""


class Effect(StrEnum):
    """A fault has acted once."""

    # connections and disks, inside an agent's process
    LOST_SEGMENT = "a segment of TCP was lost"
    LATE_FRAME = "a frame was late"
    LATE_HEARTBEAT = "a heartbeat was late"
    RESET = "a connection was reset"
    CUT_FRAME = "a link ended in the middle of a frame"
    TRICKLED = "a link passed a few bytes of more that waited"
    SLOW_DISK = "a call to the storage was slow"
    FAILED_DISK = "a call to the storage failed"
    FULL_DISK = "a file could not be made on a full disk"
    ABSENT_FOLDER = "a call to the storage did not find the folder"
    # the kill switch
    DIED = "a worker and its supervisor killed themselves"
    FROZE = "a worker and its supervisor stopped themselves"
    HUNG = "an instruction never ended"
    FLIPPED = "a bit of an optimizer's state flipped"
    MISCOMPUTED = "a result had a wrong bit"
    # signals of the fleet
    KILLED = "a process got SIGKILL"
    STOPPED = "a process got SIGSTOP"
    NOTICED = "a process got SIGTERM"
    # the operator
    HELD = "a message waited in a session"
    REFUSED = "a session was refused"
    UNHEARD = "an event waited for a frozen operator"
    SLOW_WRITE = "a durable write was slow"
    FAILED_WRITE = "a durable write failed"
    REPLACED = "the operator died and another one began"
    SUSPENDED = "the job was suspended while a message waited in a session"


Count = Callable[[Effect], None]
Acts = Counter[tuple[str, Effect]]
"""(Agent or OPERATOR, effect) -> how often."""


def patched(owner: Any, name: str, replacement: Any) -> None:
    """Put the replacement in the place of an attribute, for as long as the process lives.

    AttributeError if there is no such attribute: it has another name now, and nothing would call
    the replacement.
    """
    if not hasattr(owner, name):
        raise AttributeError(
            f"{owner!r} has no attribute {name!r}, which a fault replaces; name what does its work"
            " now"
        )
    setattr(owner, name, replacement)


class Recorder:
    """Counts the effects in an agent's process, for the fleet that has given the order."""

    def __init__(self, folder: Path, agent: str, role: str) -> None:
        path = folder / f"{agent}.{role}.effects"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def count(self, effect: Effect) -> None:
        """Count an effect."""
        os.write(self._file, f"{effect.name}\n".encode())


@dataclass(frozen=True)
class _Order:
    text: str
    who: frozenset[str]
    effects: frozenset[Effect]
    before: int


class Effects:
    """All effects in a fleet. ``folder``: where its agents' recorders write."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._own = Acts()
        self._read: dict[Path, tuple[int, Acts]] = {}
        self._orders: list[_Order] = []

    def count(self, who: str, effect: Effect) -> None:
        """Count an effect that this process has caused."""
        self._own[who, effect] += 1

    def acts(self) -> Acts:
        """All effects so far, by agent."""
        found = Acts(self._own)
        for path in self._folder.glob("*.effects"):
            found.update(self._acts_in(path))
        return found

    def of(self, *who: str) -> Counter[Effect]:
        """How often each effect has happened to these agents (none: to all, and the operator)."""
        found = Counter[Effect]()
        for (agent, effect), times in self.acts().items():
            if not who or agent in who:
                found[effect] += times
        return found

    def _acts_in(self, path: Path) -> Acts:
        """Read what is new and complete in a file."""
        at, known = self._read.get(path, (0, Acts()))
        with path.open("rb") as file:
            file.seek(at)
            lines, end, _ = file.read().rpartition(b"\n")
        agent = path.name.removesuffix(".effects").rpartition(".")[0]
        for line in lines.decode().splitlines():
            known[agent, Effect[line]] += 1
        self._read[path] = at + len(lines) + len(end), known
        return known

    # ------------------------------------------------------------ orders

    def ordered(self, text: str, who: Collection[str], *effects: Effect) -> None:
        """Remember an order, one of whose effects must happen to one of these agents."""
        before = count(self.acts(), who, effects)
        self._orders.append(_Order(text, frozenset(who), frozenset(effects), before))

    def idle_orders(self) -> list[str]:
        """Orders that have had no effect yet."""
        acts = self.acts()
        return [x.text for x in self._orders if count(acts, x.who, x.effects) <= x.before]


def count(acts: Acts, who: Collection[str], effects: Collection[Effect]) -> int:
    """How often any of these effects has happened to any of these agents."""
    return sum(acts[agent, effect] for agent in set(who) for effect in set(effects))
