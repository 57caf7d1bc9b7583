"""The worker's checkpoints: what it gives to the storage threads, and what comes back.

No method waits for the storage or touches it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from itertools import count
from typing import Any, NamedTuple

from bamboo_agent.payloads.kinds import LayerRecord
from bamboo_agent.storage.checkpoint import CheckpointError, Checkpoints, Facts, Header, Scored
from bamboo_agent.storage.origin import Origin
from bamboo_agent.storage.reader import Listing, Looked, NoOrigin, Read, Reader, Unreachable
from bamboo_agent.storage.saver import MOST_UNWRITTEN, Saved, Saver
from bamboo_agent.storage.sealer import Sealer, Sealing
from bamboo_agent.storage.sight import Look, Seen
from bamboo_core.api.spec import CheckpointSpec, JobSpec
from bamboo_core.model.ids import AgentId, Fence, Range
from bamboo_core.model.items import Item, Kind
from bamboo_core.model.pruning import LEAST_KEPT
from bamboo_core.protocol.messages import (
    AgentMessage,
    BadCheckpoint,
    CommitRecord,
    Directive,
    Listed,
    Manifest,
    Peer,
    Sealed,
)


class Told(NamedTuple):
    """A question or an answer for another agent."""

    peer: AgentId
    word: Look | Seen


class Checkpointing:
    """Tells the operator about checkpoints, and the worker about its own files and layers.

    checkpoints: None if the job keeps none; then only :meth:`begin_listing` may be asked for.
    send: sends a message to the operator. origin: what the job begins with.
    """

    def __init__(
        self,
        checkpoints: Checkpoints | None,
        agent: AgentId,
        spec: JobSpec,
        send: Callable[[AgentMessage], None],
        origin: Origin | None = None,
    ) -> None:
        self._agent = agent
        self._spec = spec.checkpoint or CheckpointSpec("")
        self._send = send
        self._saver = None if checkpoints is None else Saver(checkpoints, agent)
        self._sealer = None if checkpoints is None else Sealer(checkpoints, agent)
        self._reader = None if checkpoints is None else Reader(checkpoints, origin)
        self._torn: set[tuple[int, int]] = set()  # (attempt, step), found since the last report
        self._plan = Fence()  # of the newest directive
        self._facts = Facts(best=self._spec.best)  # of the same
        self._others: dict[AgentId, str] = {}  # voters on other nodes -> node
        self._turns = count()  # for which of them is asked next
        self.attempt = 0
        self.loaded: tuple[LayerRecord, ...] | None = None  # for the LOAD that waits

    @property
    def is_kept(self) -> bool:
        """Whether the job keeps checkpoints."""
        return self._saver is not None

    @property
    def sources(self) -> list[Saver | Sealer | Reader]:
        """Objects whose descriptors can wake the worker."""
        return [x for x in (self._saver, self._sealer, self._reader) if x is not None]

    @property
    def is_writing(self) -> bool:
        """Whether files or manifests of this agent are not written yet."""
        return any(x is not None and x.is_busy for x in (self._saver, self._sealer))

    @property
    def is_busy(self) -> bool:
        """Whether :meth:`poll` has something to expect."""
        return any(source.is_busy for source in self.sources)

    def close(self) -> None:
        """Write what is queued, then end the threads."""
        for source in self.sources:
            source.close()

    # ------------------------------------------------------------ results

    def poll(self) -> tuple[bool, list[Saved | CheckpointError | Told]]:
        """Whether something has come, and of that: files, why layers cannot be read, and words for
        other agents."""
        if self._saver is None or self._sealer is None or self._reader is None:
            return False, []
        news = [*self._saver.poll(), *self._sealer.poll(), *self._reader.poll()]
        out: list[Saved | CheckpointError | Told] = []
        for result in news:
            match result:
                case Saved():
                    out += [result] if result.attempt == self.attempt else []
                case Sealing():
                    self._sealed(result)
                case Look():
                    out += self._asked(result)
                case Looked(asker, seen):
                    out.append(Told(asker, seen))
                case Listing():
                    self._listed(result)
                case Unreachable(_, text, good):
                    self._send(Listed(good, self._plan, is_partial=True, error=text))
                case NoOrigin(fence, text):
                    self._send(Listed((), fence, is_partial=True, error=text))
                case Read(error=None):
                    self.loaded = result.records
                case Read():
                    assert result.error is not None
                    out.append(result.error)
        return bool(news), out

    def _sealed(self, sealing: Sealing) -> None:
        if sealing.attempt != self.attempt:
            return
        if sealing.manifest is None:
            self._say_unsaved(sealing.attempt, sealing.step, sealing.error)
            return
        once, unseen = sealing.is_seen_once, sealing.unseen
        self._send(Sealed(sealing.manifest, is_seen_once=once, unseen=unseen))
        assert self._saver is not None
        keep = max(LEAST_KEPT, self._spec.keep)
        self._saver.prune(keep=keep, newest=sealing.manifest, facts=self._facts)

    def _listed(self, listing: Listing) -> None:
        for error in listing.bad:
            self.refuse(error.attempt, error.step, error, listing.fence)
            self._torn.add((error.attempt, error.step))
        lacks, right = listing.unreachable, listing.right
        self._send(Listed(listing.good, listing.fence, bool(lacks), lacks, right))

    def refuse(
        self, attempt: int, step: int, why: CheckpointError, fence: Fence | None = None
    ) -> None:
        """Tell the operator that a checkpoint was read and is wrong. fence: of the order to read
        it; None: of the plan."""
        self._send(BadCheckpoint(attempt, step, str(why), fence=fence or self._plan))

    # ------------------------------------------------------------ other agents

    def hear(self, peer: AgentId, word: Look | Seen) -> None:
        """A question about files, or an answer."""
        if self._reader is None or self._sealer is None:
            return
        if isinstance(word, Look):
            self._reader.look(peer, word)
        elif peer in self._others:
            self._sealer.hear(self._others[peer], word)

    def _asked(self, question: Look) -> list[Told]:
        """To one agent on another node. The next question goes to the next one: one may be gone."""
        others = sorted(self._others)
        return [Told(others[next(self._turns) % len(others)], question)] if others else []

    def meet(self, directive: Directive, peers: Iterable[Peer]) -> None:
        """The peers of a plan."""
        known = [p for p in peers if p.agent in directive.voters and p.node]
        self._others = {p.agent: p.node for p in known if p.node != directive.node}
        if self._sealer is not None:
            self._sealer.meet(directive.node, has_others=bool(self._others))

    # ------------------------------------------------------------ reports

    def begin_listing(self, fence: Fence, suspect: Manifest | None = None) -> None:
        """List the checkpoints for the STOP of this fence; the operator is told when it is done.
        suspect: one to be read whole."""
        if self._reader is None:
            self._send(Listed((), fence))
        else:
            self._reader.begin_listing(fence, suspect)

    def begin(self, directive: Directive) -> None:
        """A plan begins. Only its coordinator takes its time to seal: it prunes, and others may
        leave."""
        self._plan = directive.fence
        self.meet(directive, directive.peers)
        if self._sealer is not None:
            self._sealer.limit(directive.look_s)
            if directive.coordinator != self._agent:
                self._sealer.hurry()
        bad = frozenset((mark.attempt, mark.step) for mark in directive.bad)
        self._facts = Facts(directive.forks, bad, self._spec.best)

    def adopt(self, attempt: int, held: Collection[Item], store: Mapping[Item, Any]) -> set[int]:
        """Prepare for a report. Returns the steps whose FILE items must not be in it.

        Those are files that could not be written, and files of checkpoints that a listing has found
        wrong. Such a listing may come at any time, but a plan relies on the items that were
        reported, and its programs seal them. So the items are kept until the next report; what is
        sealed from them in between is a checkpoint that the operator knows to be bad.
        """
        self.attempt = attempt
        if self._saver is not None:
            self._saver.adopt(attempt)
        if self._sealer is not None:
            self._sealer.adopt(attempt)
        torn, self._torn = {step for a, step in self._torn if a == attempt}, set()
        files = [item for item in held if item.kind is Kind.FILE]
        return {i.step for i in files if i.step in torn or store[i].error}

    # ------------------------------------------------------------ instructions

    def load(self, manifest: Manifest, layers: Range) -> None:
        """Read these layers; :attr:`loaded` has them when they are here."""
        assert self._reader is not None
        self.loaded = None
        self._reader.read(manifest, layers, self.attempt)

    def forget_layers(self) -> None:
        """The layers of :meth:`load` are not wanted any more."""
        self.loaded = None
        if self._reader is not None:
            self._reader.forget()

    def has_room(self, step: int) -> bool:
        """Whether :meth:`save` writes the layers of this step; if not, it gives them up."""
        assert self._saver is not None
        return self._saver.has_room(self.attempt, step)

    def save(self, step: int, layers: Range, record: Callable[[int], LayerRecord]) -> None:
        """Write snapshots of these layers, made by ``record``, or give them up at once."""
        assert self._saver is not None
        has_room = self.has_room(step)
        for layer in range(*layers):
            if has_room:
                self._saver.save(attempt=self.attempt, step=step, layer=layer, record=record(layer))
            else:
                self._saver.give_up(
                    attempt=self.attempt, step=step, layer=layer, why=self._too_slow()
                )

    def _too_slow(self) -> str:
        return (
            f"the storage is too slow for spec.checkpoint.everySteps {self._spec.every_steps}: "
            f"{MOST_UNWRITTEN} checkpoints are still being written; raise everySteps, or use a "
            "faster storage"
        )

    def seal(self, header: Header, layers: Collection[Any], validated: CommitRecord | None) -> None:
        """Write the manifest over these file records, in order. validated: the record with the
        values of the step's validation; None: there was none."""
        assert self._sealer is not None
        if (best := self._spec.best) is not None:
            value = validated.validated(best.metric) if validated is not None else None
            forks = tuple((fork.attempt, fork.step) for fork in self._facts.forks)
            header = replace(header, best=Scored(best.metric, best.mode, value, forks))
        failed = [record.error for record in layers if record.error]
        if failed:
            self._say_unsaved(header.attempt, header.step, failed[0])
        else:
            self._sealer.seal(header, list(layers))

    def _say_unsaved(self, attempt: int, step: int, why: str) -> None:
        text = f"the checkpoint of step {step} is not complete: {why}; training goes on without it"
        self._send(BadCheckpoint(attempt, step, text, cause=why))
