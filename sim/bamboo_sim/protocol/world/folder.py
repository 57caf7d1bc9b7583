"""The folder of the job's checkpoints, which may be away for a while, as a whole or in part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Self

from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import Manifest

Mark = tuple[int, int]
"""Attempt and step of a checkpoint."""
Files = tuple[int, ...] | None
"""Symbols of the layers; None: a file is wrong."""


class Folder(dict[Mark, Files]):
    """Sealed checkpoints. Each fault counts in ``effects`` when an agent meets it."""

    def __init__(self, files: Mapping[Mark, Files] | None = None) -> None:
        super().__init__(files or {})
        self.is_away = False
        self.is_replaced = False  # there is an empty folder in its place
        self.missing: frozenset[Mark] = frozenset()  # a file of theirs is not there
        self.is_missed = False  # an agent has met what is not there
        self.misreads: dict[AgentId, int] = {}  # so many of an agent's next reads are wrong
        self.misread: Counter[Mark] = Counter()  # reads that were wrong though the files are right
        self.misreaders: frozenset[AgentId] = frozenset()  # who has read something wrong
        self.refused: frozenset[Mark] = frozenset()  # a write of theirs has failed
        self.scores: dict[Mark, float | None] = {}  # in their manifests
        self.deleted: list[tuple[Mark, int]] = []  # with the attempt of who has deleted it
        self.effects: Counter[str] = Counter()
        self.pruned = 0  # checkpoints that are gone by the rule

    def __copy__(self) -> Self:
        new = type(self)()
        new.update(self)
        new.__dict__.update(self.__dict__)
        for name in ("misreads", "misread", "deleted", "effects", "scores"):
            setattr(new, name, getattr(self, name).copy())
        return new

    def seal(self, mark: Mark, files: Files, value: float | None) -> float | None:
        """A manifest is written; its value. One that is known is never lost."""
        if value is None and self.get(mark) == files:
            value = self.scores.get(mark)
        self[mark], self.scores[mark] = files, value
        return value

    def manifest(self, mark: Mark) -> Manifest:
        """As an agent names it."""
        return Manifest(*mark, f"{mark[0]}/{mark[1]}", "", self.scores.get(mark))

    def seen(self) -> list[Mark]:
        """Checkpoints that can be reached now."""
        return [] if self.is_away else sorted(self.keys() - self.missing)

    @property
    def is_whole(self) -> bool:
        """Whether everything is there."""
        return not (self.is_away or self.missing)

    def miss(self, what: str) -> None:
        """An agent meets what is not there: the "folder" or a "file"."""
        self.effects[f"{what} away"] += 1
        self.is_missed = True

    def trouble(self, wanted: Mark | None = None) -> str:
        """Why a checkpoint cannot be reached, or any; empty: it can."""
        if self.is_away:
            self.miss("folder")
            return "" if wanted is None and self.is_replaced else "the folder is not there"
        gone = self.missing if wanted is None else {wanted} - set(self.seen())
        if gone:
            self.miss("file")
            return f"a file of {sorted(gone)[0]} is not there"
        return ""

    def read(self, agent: AgentId, wanted: Mark, *, fails: bool) -> Files:
        """Symbols as the agent reads them; None: it looks wrong."""
        found, left = self[wanted], self.misreads.get(agent, 0)
        if found is None:
            self.effects["file wrong"] += 1
        elif fails or left:
            self.misreads[agent] = max(0, left - 1)
            self.misread[wanted] += 1
            self.misreaders |= {agent}
            self.effects["misread"] += 1
            return None
        return found
