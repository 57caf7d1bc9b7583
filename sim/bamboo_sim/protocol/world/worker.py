"""A simulated worker: the production executor over the symbolic back end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bamboo_core.model.ids import AgentId
from bamboo_core.model.items import Item
from bamboo_core.model.numerics import BatchShape
from bamboo_core.model.program import Instruction, Op
from bamboo_core.placement.plan import layers_of
from bamboo_core.protocol.executor import (
    Drop,
    Effect,
    Executor,
    Run,
    SendOperator,
    StepEnded,
    Transmit,
)
from bamboo_core.protocol.messages import (
    AgentReport,
    BadCheckpoint,
    CommitRecord,
    Continuation,
    Directive,
    Fingerprint,
    LayerCost,
    Left,
    Manifest,
    Progress,
    Ready,
    Sealed,
    Stop,
)
from bamboo_sim.protocol.world.symbolic import Symbolic

Sealings = dict[tuple[int, int], tuple[int, ...] | None]
"""(attempt, step) of a sealed checkpoint -> symbols of its layers; None: a file is corrupt."""


class Worker:
    def __init__(
        self,
        name: AgentId,
        num_layers: int,
        sealed: Sealings,
        *,
        salted: bool,
        costs: tuple[LayerCost, ...],
    ) -> None:
        self.name, self.num_layers, self.salted, self.costs = name, num_layers, salted, costs
        self.executor = Executor(name, num_layers)
        self.backend = Symbolic(name, num_layers, BatchShape(1, 1, 1))
        self.pending: Instruction | None = None  # the running one
        self.saving: list[tuple[Item, int, Any]] = []  # files that are being written
        self.said: list[Any] = []  # messages to the supervisor that have not left yet
        self.sent: list[tuple[AgentId, Any]] = []  # the same to peers: (Transmit, payload)
        self.sealed = sealed
        self.manifest: Manifest | None = None
        self.wants_manifests = False
        self.settled: frozenset[int] = frozenset()  # layers that it must keep
        self.ended = -1

    def copy(self, sealed: Sealings) -> Worker:
        """An independent copy that uses these checkpoints."""
        new = Worker.__new__(Worker)
        new.__dict__.update(self.__dict__)
        executor = Executor.__new__(Executor)
        executor.__dict__.update(self.executor.__dict__)
        for name in ("held", "versions", "commits", "_saving", "_owed"):
            setattr(executor, name, getattr(executor, name).copy())
        new.executor, new.backend, new.sealed = executor, self.backend.copy(), sealed
        new.saving, new.said, new.sent = self.saving.copy(), self.said.copy(), self.sent.copy()
        return new

    @property
    def is_busy(self) -> bool:
        """Whether it has work that waits for no message."""
        return self.pending is not None or bool(self.saving)

    def ready(self) -> Ready:
        """Its first message, once model and data are loaded."""
        return Ready(
            Fingerprint(), self.num_layers, 1 << 20, validation_samples=0, costs=self.costs
        )

    # ------------------------------------------------------------ events

    def hear(self, message: Any) -> None:
        """Handle a message of the operator."""
        executor = self.executor
        match message:
            case Stop():
                self.wants_manifests = message.want_manifests
                self.perform(executor.stop(message))
            case Directive():
                if message.fence == executor.fence:
                    self.backend.batch = message.batch
                    self.manifest = message.manifest
                    self.backend.salt = message.fence.attempt if self.salted else 0
                self.perform(executor.install(message))
            case Continuation():
                self.perform(executor.proceed(message))

    def arrive(self, sent: Transmit, payload: Any) -> None:
        """Receive a peer's item."""
        if not self.executor.accepts(sent.item, sent.fence):
            return
        self.backend.accept(sent.item, payload)
        if sent.commit is not None:
            self.backend.store.setdefault(Item.commit(sent.commit.step), sent.commit)
        self.perform(self.executor.arrive(sent.item, sent.fence, sent.commit))

    def run(self) -> CommitRecord | None:
        """Complete the pending instruction."""
        task = self.pending
        assert task is not None
        self.pending = None
        record = None
        if task.op is Op.SAVE:
            for layer in range(task.lo, task.hi):
                item = Item.file(task.step, layer)
                value = self.backend.layers[layer]
                self.saving.append((item, self.executor.fence.attempt, value))
        elif task.op is Op.SEAL:
            self._seal(task)
        elif task.op is Op.LOAD:
            if not self._load(task):
                return None
        else:
            record = self.backend.run(task)
        self.perform(self.executor.done(record))
        return record

    def _load(self, task: Instruction) -> bool:
        """False if the checkpoint cannot be read."""
        assert self.manifest is not None
        attempt, step = self.manifest.attempt, self.manifest.step
        files = self.sealed[attempt, step]
        if files is None:
            self.said.append(BadCheckpoint(attempt, step, "torn"))
            self.perform(self.executor.abandon())
            return False
        self.backend.run(task, dict(enumerate(files)))
        return True

    def _seal(self, task: Instruction) -> None:
        attempt = self.executor.fence.attempt
        names = [Item.file(task.step, x) for x in range(self.num_layers)]
        self.sealed[attempt, task.step] = tuple(self.backend.store[name] for name in names)
        manifest = Manifest(attempt, task.step, f"{attempt}/{task.step}", "")
        self.said.append(Sealed(manifest))

    def save(self) -> None:
        """Complete the oldest file."""
        item, attempt, value = self.saving.pop(0)
        if attempt != self.executor.fence.attempt:
            return
        self.backend.store[item] = value
        self.perform(self.executor.saved(item))

    def settle(self) -> bool:
        """Take note of an ended step. After the plan's target, all assigned layers must be here.

        True if one is missing.
        """
        executor = self.executor
        self.ended = executor.ended
        directive = executor.directive
        if directive is None or executor.ended <= directive.target:
            return False
        wanted = frozenset(layers_of(directive.wanted))
        if self.name in directive.voters:  # a learner may be behind when the others die
            self.settled = wanted
        return any(executor.versions.get(x, -1) < executor.ended for x in wanted)

    # ------------------------------------------------------------ effects

    def perform(self, effects: list[Effect]) -> None:
        """Perform the executor's effects."""
        for effect in effects:
            if type(effect) is Run:
                self.pending = effect.instruction
            elif type(effect) is Transmit:
                payload = self.backend.payload(effect.item)
                self.sent.append((effect.peer, (effect, payload)))
            elif type(effect) is Drop:
                for item in effect.items:
                    self.backend.drop(item)
            elif type(effect) is StepEnded:
                self.said.append(Progress(effect.commit))
            elif type(effect) is SendOperator:
                self._say(effect.message)

    def _say(self, message: Any) -> None:
        if isinstance(message, AgentReport) and self.wants_manifests:
            manifests = self._scan()
            items = frozenset(self.executor.held)
            message = replace(message, manifests=manifests, items=items)
        if isinstance(message, Left):  # nothing depends on its holdings from now on
            self.settled = frozenset()
        self.said.append(message)

    def _scan(self) -> tuple[Manifest, ...]:
        """All readable checkpoints; the others are reported as bad."""
        good = []
        for (attempt, step), files in sorted(self.sealed.items()):
            if files is None:
                self.said.append(BadCheckpoint(attempt, step, "torn"))
                if attempt == self.executor.fence.attempt:
                    self.perform(self.executor.unsaved({step}))
            else:
                good.append(Manifest(attempt, step, f"{attempt}/{step}", ""))
        return tuple(good)
