"""Writes manifests in the background, once agents on two nodes have seen all files."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from threading import Event

from bamboo_agent.payloads.kinds import FileRecord
from bamboo_agent.storage import reader
from bamboo_agent.storage.background import Background
from bamboo_agent.storage.checkpoint import CheckpointError, Checkpoints, Header
from bamboo_agent.storage.sight import Look, Seen
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import Manifest

log = logging.getLogger(__name__)

LOOK_S = 75.0
"""How long a file may stay out of sight before the checkpoint is sealed without it being seen. An
NFS client may keep what it has seen of a folder for 60 s."""
_ANSWER_S = 2.0  # for the answer to the last question; the time may have passed in the queue


@dataclass(frozen=True)
class Sealing:
    """A manifest, or why there is none."""

    attempt: int
    step: int
    manifest: Manifest | None = None
    error: str = ""
    is_seen_once: bool = False  # all agents live on one node
    unseen: str = ""  # which file which node does not see; empty: two nodes see all


@dataclass(eq=False)
class _Job:
    header: Header
    records: tuple[FileRecord, ...]
    look: Look
    ends_at: float  # by time.monotonic()
    news: Event = field(default_factory=Event)  # it need not wait for its next look
    answered: Event = field(default_factory=Event)
    is_seen_there: bool = False  # by an agent on another node
    is_urgent: bool = False  # is sealed at once
    is_done: bool = False
    missing: str = ""  # the last answer of another node, as a sentence


class Sealer:
    """One thread of its own: files that another node does not see yet hold up no other file.

    Every file is looked at from two nodes, this agent's and another one, so from one at least that
    is not its writer's. :meth:`poll` returns the questions; somebody else sends them.
    """

    def __init__(self, checkpoints: Checkpoints, agent: AgentId) -> None:
        self._checkpoints, self._agent = checkpoints, agent
        self._thread: Background[Sealing | Look] = Background("sealer")
        self._attempt = 0
        self._node = ""  # of this agent; empty: not known
        self._has_others = False  # agents on other nodes
        self._until, self._answer_s = inf, _ANSWER_S  # of this plan
        self._is_silent = False  # a wait for the last answer was in vain, and none has come since
        self._jobs: list[_Job] = []

    def adopt(self, attempt: int) -> None:
        """Begin a plan of this attempt: older ones seal nothing any more."""
        self._attempt = attempt
        for job in self._jobs:
            if job.header.attempt < attempt:
                _hurry(job)

    def meet(self, node: str, *, has_others: bool) -> None:
        """A plan begins: what was not answered under the one before it is asked again. node: of
        this agent; has_others: whether it has peers on other nodes."""
        self._node, self._has_others, self._is_silent = node, has_others, False
        for job in self._jobs:
            job.news.set()

    def limit(self, look_s: float) -> None:
        """Look for so many seconds from now at most; 0: as long as usual."""
        self._until = time.monotonic() + look_s if look_s else inf
        self._answer_s = min(_ANSWER_S, look_s or inf)
        for job in self._jobs:
            job.ends_at = min(job.ends_at, self._until)
            job.news.set()

    def hurry(self) -> None:
        """Seal what is queued without looking any longer."""
        for job in self._jobs:
            _hurry(job)

    def seal(self, header: Header, records: Sequence[FileRecord]) -> None:
        """Queue the manifest over these files."""
        look = Look(header.attempt, header.step, tuple(r.num_bytes for r in records))
        job = _Job(header, tuple(records), look, min(self._until, time.monotonic() + LOOK_S))
        self._jobs.append(job)
        self._thread.submit(lambda: self._seal(job))

    def hear(self, node: str, seen: Seen) -> None:
        """An answer of an agent on this node."""
        for job in self._jobs:
            if (job.look.attempt, job.look.step) != (seen.attempt, seen.step):
                continue
            if seen.missing:
                job.missing = _unseen(seen.missing, node)
            else:
                job.is_seen_there = True
                job.news.set()
            job.answered.set()
            self._is_silent = False

    def poll(self) -> list[Sealing | Look]:
        """Since the last call: manifests, and questions for an agent on another node."""
        self._jobs = [job for job in self._jobs if not job.is_done]
        return self._thread.poll()

    @property
    def is_busy(self) -> bool:
        """Whether a manifest is not written, or :meth:`poll` has not returned it yet."""
        return self._thread.is_busy

    def fileno(self) -> int:
        """Readable while :meth:`poll` has results."""
        return self._thread.fileno()

    def close(self) -> None:
        """Write what is queued, then end the thread."""
        self.hurry()
        self._thread.close()

    # ------------------------------------------------------------ in the thread

    def _seal(self, job: _Job) -> Sealing | None:
        attempt, step = job.header.attempt, job.header.step
        unseen = self._look(job) if self._node else ""
        job.is_done = True
        if attempt < self._attempt:
            return None
        if unseen:
            log.warning("%s; the checkpoint of step %d is sealed all the same", unseen, step)
        try:
            manifest = self._checkpoints.seal(job.header, job.records)
        except CheckpointError as error:
            log.error("the manifest of step %d is not written: %s", step, error)
            return Sealing(attempt, step, error=f"agent {self._agent}: {error.cause}")
        is_alone = self._node != "" and not (self._has_others or job.is_seen_there)
        return Sealing(attempt, step, manifest, is_seen_once=is_alone, unseen=unseen)

    def _look(self, job: _Job) -> str:
        """Which file which node does not see, after ``LOOK_S``; empty: two nodes see all, or the
        only one does."""
        missing = folder = self._checkpoints.folder(job.header.attempt, job.header.step)
        for pause_s in reader.pauses():
            if self._is_asked(job):
                self._thread.note(job.look)
            missing = missing and self._checkpoints.missing(job.look)
            left_s = job.ends_at - time.monotonic()
            if left_s <= 0 or job.is_urgent or not (missing or self._is_asked(job)):
                break
            job.news.wait(min(pause_s, left_s))
            job.news.clear()
        if self._is_asked(job) and not self._is_silent:
            # One wait in vain is enough, or checkpoints that come faster would queue up.
            self._is_silent = not job.answered.wait(self._answer_s)
        if missing:
            return _unseen(missing, self._node)
        silent = f"no agent on another node has said whether it sees {folder}"
        return (job.missing or silent) if self._is_asked(job) else ""

    def _is_asked(self, job: _Job) -> bool:
        """Whether an agent on another node has not seen it yet. They may have left meanwhile."""
        return self._has_others and not job.is_seen_there


def _hurry(job: _Job) -> None:
    job.is_urgent = True
    job.news.set()
    job.answered.set()


def _unseen(path: str, node: str) -> str:
    return f"{path} is not seen from node {node}"
