"""Words that a supervisor repeats in every session, since a broken stream loses its last words.

Nothing is numbered or acknowledged. What an agent says is state, and saying it twice changes
nothing. A directive shows how much the leader has durably: all that came before the report that the
directive answers, since a stream keeps its order and every session begins with the repetition.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bamboo_core.model.ids import Fence
from bamboo_core.protocol.messages import (
    BadCheckpoint,
    Disputed,
    Finished,
    Halted,
    Left,
    Listed,
    Progress,
    Sealed,
)

Word = Progress | Sealed | BadCheckpoint | Listed | Disputed | Halted | Left | Finished
"""What is kept and repeated."""

MOST_SEALED = 6
MOST_BAD = 8

_Key = tuple[object, ...]


@dataclass
class Said:
    """The words to repeat, oldest first, the outcome last. It replaces what a newer word outdates.

    Only the newest Progress, the newest list, and the newest few seals and bad checkpoints are
    kept, so a long plan does not fill the memory.
    """

    outcome: Left | Finished | None = None
    _reported: Fence = field(default_factory=Fence)  # fence of the newest report
    _before: dict[_Key, Word] = field(default_factory=dict)  # said before that report
    _since: dict[_Key, Word] = field(default_factory=dict)

    def add(self, word: Word) -> None:
        """Keep a word. It replaces an earlier one about the same thing."""
        if isinstance(word, Left | Finished):
            self.outcome = word
            return
        key = _key(word)
        self._before.pop(key, None)
        self._since.pop(key, None)
        self._since[key] = word
        self._trim(Sealed, MOST_SEALED)
        self._trim(BadCheckpoint, MOST_BAD)

    def stop(self) -> None:
        """A STOP of a newer fence ends the outcome of the plan before it."""
        self.outcome = None

    def report(self, fence: Fence) -> None:
        """A report leaves. If it is said again, the first one counts: a plan may answer either."""
        if fence != self._reported:
            self._reported = fence
            self._before |= self._since
            self._since = {}

    def install(self, fence: Fence) -> None:
        """A plan has come. If it answers a report, forget what was said before that report."""
        if fence == self._reported:
            self._before.clear()

    def words(self) -> list[Word]:
        """The words to repeat, in order."""
        last = [] if self.outcome is None else [self.outcome]
        return [*self._before.values(), *self._since.values(), *last]

    def copy(self) -> Said:
        """An independent copy."""
        return Said(self.outcome, self._reported, self._before.copy(), self._since.copy())

    def _trim(self, kind: type[Word], most: int) -> None:
        for words in (self._before, self._since):
            for key in [k for k in words if k[0] is kind][: max(0, self._count(kind) - most)]:
                del words[key]

    def _count(self, kind: type[Word]) -> int:
        return sum(key[0] is kind for words in (self._before, self._since) for key in words)


def _key(word: Progress | Sealed | BadCheckpoint | Listed | Disputed | Halted) -> _Key:
    """Words with the same key replace each other."""
    if isinstance(word, Sealed):
        return (Sealed, word.manifest.attempt, word.manifest.step)
    if isinstance(word, BadCheckpoint):
        return (BadCheckpoint, word.attempt, word.step)
    if isinstance(word, Listed):
        return (Listed, word.is_partial)  # what cannot be reached must not replace a whole list
    return (type(word),)
