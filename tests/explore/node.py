"""One agent of the explored world: the production executor over the symbolic back end."""

from __future__ import annotations

from typing import Any

from bamboo_core.executor import Drop, Effect, Executor, Run, Say, StepEnded, Transmit
from bamboo_core.ids import AgentId
from bamboo_core.items import Item, Kind
from bamboo_core.messages import (
    CommitRecord,
    Directive,
    Fingerprint,
    Hello,
    Manifest,
    Progress,
    Ready,
    Release,
    Report,
    Sealed,
    Stop,
)
from bamboo_core.numerics import BatchShape
from bamboo_core.plan import layers_of
from bamboo_core.program import Instruction, Op
from bamboo_core.symbolic import Symbolic


class Node:
    """Executor, payloads, and what it wants to do next.

    pending: the instruction that runs; saving: files that are being written; outbox: (peer,
    message) that have not left yet, peer "" = the operator.
    """

    executor_type = Executor

    def __init__(self, name: AgentId, num_layers: int, *, salted: bool) -> None:
        self.name, self.num_layers, self.salted = name, num_layers, salted
        self.executor = self.executor_type(name, num_layers)
        self.backend = Symbolic(name, num_layers, BatchShape(1, 1, 1))
        self.pending: Instruction | None = None
        self.saving: list[tuple[Item, int, Any]] = []
        self.outbox: list[tuple[AgentId, Any]] = []
        self.manifest: Manifest | None = None
        self.wants_manifests = False
        self.released: int | None = None
        self.operator = AgentId("")
        self.kept: list[Any] = []
        self.settled: frozenset[int] = frozenset()
        self.ended = -1
        self.end: Any = None

    def copy(self) -> Node:
        new = Node.__new__(Node)
        new.__dict__.update(self.__dict__)
        executor = type(self.executor).__new__(type(self.executor))
        executor.__dict__.update(self.executor.__dict__)
        for name in ("held", "versions", "commits", "_saving", "_owed"):
            setattr(executor, name, getattr(executor, name).copy())
        new.executor, new.backend = executor, self.backend.copy()
        new.saving, new.outbox = self.saving.copy(), self.outbox.copy()
        new.kept = self.kept.copy()
        return new

    def hello(self) -> Hello:
        address = f"{self.name}:1"
        return Hello(
            self.name,
            pod_uid=self.name,
            node=self.name,
            zone="z",
            machine=self.name,
            data_address=address,
            liveness_address=address,
            fence=self.executor.fence,
            has_state=bool(self.executor.versions),
        )

    def ready(self) -> Ready:
        return Ready(Fingerprint(), self.num_layers, training_samples=1 << 20, validation_samples=0)

    # ------------------------------------------------------------ events

    def hear(self, message: Any, sealed: dict) -> None:
        """A message of the operator."""
        executor = self.executor
        match message:
            case Stop():
                self.wants_manifests = message.want_manifests
                self.perform(executor.stop(message), sealed)
            case Directive():
                if message.fence == executor.fence:
                    self.backend.batch = message.batch
                    self.manifest = message.manifest
                    self.backend.salt = message.fence.attempt if self.salted else 0
                self.perform(executor.install(message), sealed)
            case Release(code, _):
                self.released = code

    def arrive(self, sent: Transmit, payload: Any, sealed: dict) -> None:
        """A peer's item."""
        if not self.executor.accepts(sent.item, sent.fence):
            return
        self.backend.accept(sent.item, payload)
        if sent.commit is not None:
            self.backend.store.setdefault(Item(Kind.COMMIT, sent.commit.step), sent.commit)
        self.perform(self.executor.arrive(sent.item, sent.fence, sent.commit), sealed)

    def run(self, sealed: dict) -> CommitRecord | None:
        """The pending instruction completes."""
        task = self.pending
        assert task is not None
        self.pending = None
        record = None
        if task.op is Op.SAVE:
            for layer in range(task.lo, task.hi):
                item = Item(Kind.FILE, task.step, layer, layer + 1)
                value = self.backend.layers[layer]
                self.saving.append((item, self.executor.fence.attempt, value))
        elif task.op is Op.SEAL:
            self._seal(task, sealed)
        elif task.op is Op.LOAD:
            assert self.manifest is not None
            files = sealed[self.manifest.attempt, self.manifest.step]
            self.backend.run(task, dict(enumerate(files)))
        else:
            record = self.backend.run(task)
        self.perform(self.executor.done(record), sealed)
        return record

    def _seal(self, task: Instruction, sealed: dict) -> None:
        attempt = self.executor.fence.attempt
        names = [Item(Kind.FILE, task.step, x, x + 1) for x in range(self.num_layers)]
        sealed[attempt, task.step] = tuple(self.backend.store[name] for name in names)
        manifest = Manifest(attempt, task.step, f"{attempt}/{task.step}", "")
        self.outbox.append((AgentId(""), Sealed(manifest)))

    def save(self, sealed: dict) -> None:
        """A file is complete."""
        item, attempt, value = self.saving.pop(0)
        if attempt != self.executor.fence.attempt:
            return
        self.backend.store[item] = value
        self.perform(self.executor.saved(item), sealed)

    def settle(self) -> bool:
        """Once a step after the plan's target has ended, all wanted layers must be here.

        True: one is not.
        """
        executor = self.executor
        ended, self.ended = self.ended, executor.ended
        directive = executor.directive
        if ended == executor.ended or directive is None or executor.ended <= directive.target:
            return False
        self.settled = frozenset(layers_of(directive.wanted))
        return any(executor.versions.get(x, -1) < executor.ended for x in self.settled)

    # ------------------------------------------------------------ effects

    def perform(self, effects: list[Effect], sealed: dict) -> None:
        for effect in effects:
            if type(effect) is Run:
                self.pending = effect.instruction
            elif type(effect) is Transmit:
                payload = self.backend.payload(effect.item)
                self.outbox.append((effect.peer, (effect, payload)))
            elif type(effect) is Drop:
                for item in effect.items:
                    self.backend.drop(item)
            elif type(effect) is StepEnded:
                self.outbox.append((AgentId(""), Progress(effect.commit)))
            elif type(effect) is Say:
                self._say(effect.message, sealed)

    def _say(self, message: Any, sealed: dict) -> None:
        if isinstance(message, Report) and self.wants_manifests:
            known = tuple(Manifest(a, k, f"{a}/{k}", "") for a, k in sorted(sealed))
            message = Report(
                message.fence,
                message.installed,
                message.versions,
                message.items,
                message.commits,
                message.ended,
                known,
            )
        self.outbox.append((AgentId(""), message))
