"""A simulated worker: the production executor over the symbolic back end."""

from __future__ import annotations

from collections.abc import Callable, Sized
from dataclasses import replace
from typing import Any

from bamboo_core.model import pruning
from bamboo_core.model.claims import DisputedError, name_of
from bamboo_core.model.ids import AgentId
from bamboo_core.model.items import Item, Kind
from bamboo_core.model.numerics import BatchShape
from bamboo_core.model.program import BACKWARDS, Instruction, Op, layers_done
from bamboo_core.placement.plan import layers_of
from bamboo_core.protocol.execution.issued import ON_DEVICE
from bamboo_core.protocol.executor import (
    Drop,
    Effect,
    Executor,
    Retract,
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
    Disputed,
    Failure,
    Fingerprint,
    Finished,
    Halted,
    Left,
    Listed,
    Manifest,
    Mark,
    Progress,
    Ready,
    Sealed,
    Stop,
    Tie,
)
from bamboo_sim.protocol.parts.job import Job
from bamboo_sim.protocol.parts.symbolic import ContradictionError, Symbolic
from bamboo_sim.protocol.parts.users_code import FORWARDS, BadCode
from bamboo_sim.protocol.parts.violation import Violation
from bamboo_sim.protocol.world.device import Device
from bamboo_sim.protocol.world.folder import Folder

Write = tuple[int, int, int, Any]
"""Attempt, step, layer and symbol of a file; layer -1: a manifest over the symbols of all layers"""


class Worker:
    def __init__(self, name: AgentId, job: Job, sealed: Folder) -> None:
        self.name, self.num_layers = name, job.num_layers
        self.salted, self.costs = job.salted, job.costs
        self.memory_bytes, self.evals, self.best = job.memory_bytes, job.evals, job.best
        self.scores: dict[tuple[int, int], float | None] = {}  # of manifests that are written
        self.products = "usual"  # digest of its processor's products
        self.executor = Executor(name, job.num_layers, ahead=job.issues)
        batch = BatchShape(1, 1, 1)
        self.backend = Symbolic(name, job.num_layers, batch, job.save_every, job.ties)
        self.backend.check_every = job.check_every
        self.pending: Instruction | None = None  # to be issued
        self.device = Device()
        self.writes: list[Write] = []  # of its storage threads, one that writes
        self.reads: list[Manifest | Stop] = []  # and one that reads; a STOP asks for a list
        self.blocked: Manifest | None = None  # is not there
        self.forks: tuple[tuple[int, int], ...] = ()  # of the newest directive
        self.bad: frozenset[tuple[int, int]] = frozenset()
        self.loaded: tuple[int, ...] | None = None  # for the LOAD that waits
        self.torn: set[tuple[int, int]] = set()  # checkpoints found since the last report
        self.farewell: Any = None  # waits until all is written
        self.disputed: frozenset[tuple[int, int, int, int]] = frozenset()  # it has told of these
        self.failing = 0  # so many of its next slices fail
        self.hiccup = ""  # error of its next forward or backward; empty: there is none
        self.hiccup_in = FORWARDS
        self.bad_code: BadCode | None = None  # that fails on every agent
        self.has_halted = False  # at any time, by the user's code
        self.said: list[Any] = []  # messages to the supervisor that have not left yet
        self.sent: list[tuple[AgentId, Any]] = []  # the same to peers: (Transmit, payload)
        self.sealed = sealed
        self.manifest: Manifest | None = None
        self.sealings: frozenset[tuple[int, int]] = frozenset()  # that it has completed
        self.settled: frozenset[int] = frozenset()  # layers that it must keep
        self.ended = -1

    def copy(self, sealed: Folder) -> Worker:
        """An independent copy that uses these checkpoints."""
        new = Worker.__new__(Worker)
        new.__dict__.update(self.__dict__)
        executor = Executor.__new__(Executor)
        executor.__dict__.update(self.executor.__dict__)
        for name in ("held", "versions", "commits", "_files"):
            setattr(executor, name, getattr(executor, name).copy())
        new.executor, new.backend, new.sealed = executor, self.backend.copy(), sealed
        for name in ("writes", "reads", "torn", "said", "sent"):
            setattr(new, name, getattr(self, name).copy())
        return new

    @property
    def is_busy(self) -> bool:
        """Whether it has work that waits for no message."""
        return self.can_run or bool(self.writes or self.reads)

    @property
    def can_run(self) -> bool:
        """Whether its next instruction, or its device, waits for nothing."""
        return self.can_issue or self.device.is_busy

    @property
    def can_issue(self) -> bool:
        """Whether its next instruction waits for nothing."""
        return self.pending is not None and not self._waits_for_layers

    @property
    def is_blocked(self) -> bool:
        """Whether it waits for a checkpoint that it has not found."""
        is_wanted = self.blocked is not None and self.blocked is self.manifest
        return is_wanted and self._waits_for_layers

    @property
    def _waits_for_layers(self) -> bool:
        return self.pending is not None and self.pending.op is Op.LOAD and self.loaded is None

    def ready(self) -> Ready:
        """Its first message, once model and data are loaded."""
        found = Fingerprint(products=self.products)
        return Ready(
            found,
            self.num_layers,
            1 << 20,
            validation_samples=self.evals,
            costs=self.costs,
            memory_bytes=self.memory_bytes,
            ties=tuple(Tie(layers) for layers in self.backend.ties),
        )

    # ------------------------------------------------------------ events

    def hear(self, message: Any) -> None:
        """Handle a message of the operator."""
        executor = self.executor
        match message:
            case Stop():
                if message.want_manifests:
                    self.reads.append(message)
                self.perform(executor.stop(message))
                if executor.is_stopping and self._waits_for_layers:
                    self._abandon()
            case Directive():
                if message.fence == executor.fence:
                    self.backend.batch = message.batch
                    self.backend.compares = message.compares
                    self.backend.question = message.question
                    self.manifest = message.manifest
                    self.forks = tuple((f.attempt, f.step) for f in message.forks)
                    self.bad = frozenset((m.attempt, m.step) for m in message.bad)
                    self.backend.salt = message.fence.attempt if self.salted else 0
                self.perform(executor.install(message))
            case Continuation():
                self.perform(executor.proceed(message))

    def arrive(self, sent: Transmit, payload: Any) -> None:
        """Receive a peer's item."""
        if not self.executor.accepts(sent.item, sent.fence):
            return
        self.device.check_accepted(self.name, sent.item)
        self.backend.accept(sent.item, payload)
        if sent.commit is not None:
            self.backend.store.setdefault(Item.commit(sent.commit.step), sent.commit)
        self.perform(self.executor.arrive(sent.item, sent.fence, sent.commit))

    def complete(self) -> Op:
        """The device completes the oldest instruction that it has. Which one."""
        first, self.device = self.device.first, self.device.without_first()
        self.perform(self.executor.done())
        return first.instruction.op

    def run(self) -> CommitRecord | None:
        """Run the pending instruction. One that the device may complete later is only issued, if
        the device takes several."""
        task = self.pending
        assert task is not None
        self.pending = None
        record = None
        attempt = self.executor.fence.attempt
        if self.bad_code is not None and self.bad_code.is_fatal and self._is_bad(task):
            text = f"{self.name} has crashed"
            self.said.append(Failure("WorkerExited", text, False, 128 + 11, str(task)))
            return None
        if task.op is Op.R and (self.failing or self._is_bad(task)):
            self.failing -= self.failing > 0
            self.backend.left_out |= {name_of(task)}
            self.perform(self.executor.skip())
            return None
        if text := self._error_of(task):
            self._halt(task, text)
            return None
        if task.op is Op.SAVE:
            for layer in range(task.lo, task.hi):
                self.writes.append((attempt, task.step, layer, self.backend.layers[layer]))
        elif task.op is Op.SEAL:
            names = [Item.file(task.step, x) for x in range(self.num_layers)]
            files = tuple(self.backend.store[name] for name in names)
            if None in files:
                self._say_unsaved(attempt, task.step)
            else:
                self.writes.append((attempt, task.step, -1, files))
                self.scores = {**self.scores, (attempt, task.step): self._score(task)}
        elif task.op is Op.LOAD:
            assert self.loaded is not None
            self.backend.run(task, dict(enumerate(self.loaded)))
            self.loaded = None
        else:
            try:
                record = self.backend.run(task)
            except DisputedError as found:
                fence = self.executor.fence
                self.said.append(Disputed(fence, task.step, found.disputes))
                self.disputed |= {(task.step, d.lo, d.hi, d.microbatch) for d in found.disputes}
                self._abandon()
                return None
            except ContradictionError as error:
                if self.backend.is_sound:
                    raise Violation(f"{self.name} is sound, but contradicts itself") from error
                self.said.append(Failure("Corruption", str(error), False, 1))
                return None
        if self.executor.ahead > 1 and task.op in ON_DEVICE:
            self._issue()
        else:
            self.perform(self.executor.done(record))
        return record

    def _is_bad(self, task: Instruction) -> bool:
        """Whether it is the first layer's forward or backward that fails on every agent."""
        bad = self.bad_code
        if bad is None or task.step != bad.step or task.op not in bad.ops or task.index:
            return False
        first = task.ranges[0][0] if task.op is Op.R else layers_done(task)
        return task.lo == first == 0

    def _error_of(self, task: Instruction) -> str:
        """The error of the user's code in the instruction; empty: there is none."""
        if self._is_bad(task):
            return f"micro-batch 0 of step {task.step} fails"
        if task.op not in self.hiccup_in:
            return ""
        error, self.hiccup = self.hiccup, ""
        return error

    def _halt(self, task: Instruction, error: str) -> None:
        """Only a STOP helps. What the device has been given before counts."""
        while self.device.is_busy:
            self.complete()
        if task.op in BACKWARDS:
            self.backend.spoil(task)
        self.has_halted = True
        self.said.append(Halted(self.executor.fence, error))
        self._abandon()

    def _issue(self) -> None:
        """Consumed items are replaced on the device, whoever still wants them."""
        task = self.executor._running
        assert task is not None
        self.device = self.device.with_one(task)
        for item in task.gone:
            self.backend.store.pop(item, None)
        self.perform(self.executor.issued())

    # ------------------------------------------------------------ storage

    @property
    def storage(self) -> tuple[tuple[Callable[[bool], None], Sized], ...]:
        """Its threads: what completes the next job, and the jobs."""
        return (self.write, self.writes), (self.read, self.reads)

    def write(self, fails: bool = False) -> None:
        """Complete the oldest file or manifest. Those of an attempt that is over count no more."""
        attempt, step, layer, value = self.writes.pop(0)
        if self.sealed.is_away:
            self.sealed.miss("folder")
            fails = True
        if fails:
            self.sealed.refused |= {(attempt, step)}
        if attempt == self.executor.fence.attempt:
            if layer >= 0:
                item = Item.file(step, layer)
                self.backend.store[item] = None if fails else value
                self.perform(self.executor.saved(item))
            elif fails:
                self._say_unsaved(attempt, step)
            else:
                self.sealed.seal((attempt, step), value, self.scores.get((attempt, step)))
                self.sealings |= {(attempt, step)}
                self.said.append(Sealed(self.sealed.manifest((attempt, step))))
                self._prune(attempt, step)
        self._say_farewell()

    def _prune(self, attempt: int, step: int) -> None:
        """As the production storage does, by the same rule."""
        folder, best = self.sealed, set[tuple[int, int]]()
        if self.best is not None:
            values = {mark: folder.scores.get(mark) for mark in folder.seen()}
            best = pruning.worth_keeping(values, self.bad, self.forks, is_max=self.best.is_max)
        for mark in pruning.removable(
            folder.seen(),
            newest=(attempt, step),
            keep=pruning.LEAST_KEPT,
            sealed=set(folder.seen()) - self.bad,
            forks=self.forks,
            best=best,
        ):
            folder.deleted.append((mark, attempt))

    def _score(self, seal: Instruction) -> float | None:
        """The value of the step's validation, for the manifest."""
        record = None
        if seal.item is not None:
            record = self.executor.commits[seal.item.step]
        elif seal.ranges:
            record = self.backend.scored(seal.step)
        return record.validated("loss") if record is not None and self.best is not None else None

    def _say_unsaved(self, attempt: int, step: int) -> None:
        self.said.append(BadCheckpoint(attempt, step, "not complete", cause="the disk is full"))

    def read(self, fails: bool = False) -> None:
        """Complete the oldest listing, or reading for the LOAD that waits. A listing that fails is
        tried again."""
        wanted = self.reads.pop(0)
        if isinstance(wanted, Stop):
            if fails:
                self.reads.append(wanted)
            else:
                self._list(wanted)
        elif wanted is self.manifest and self._waits_for_layers:
            self._load(wanted, fails)

    def _load(self, wanted: Manifest, fails: bool) -> None:
        """Wait while it is not there; what is wrong is reported."""
        mark, fence = (wanted.attempt, wanted.step), self.executor.fence
        if trouble := self.sealed.trouble(mark):
            self.blocked = wanted
            good = tuple(map(self.sealed.manifest, self.sealed.seen()))
            self.said.append(Listed(good, fence, is_partial=True, error=trouble))
            return
        if self.blocked is not None:
            self.blocked = None
            self.said.append(Listed((), fence, is_partial=True))
        self.loaded = self.sealed.read(self.name, mark, fails=fails)
        if self.loaded is None:
            self.said.append(BadCheckpoint(*mark, "wrong", fence=fence))
            self._abandon()

    def retry(self) -> None:
        """Files may be there again."""
        if self.is_blocked:
            assert self.blocked is not None
            self.reads.append(self.blocked)

    def _abandon(self) -> None:
        self.pending = self.loaded = None
        self.perform(self.executor.abandon())

    def _list(self, stop: Stop) -> None:
        """All checkpoints that are there and right; those that are wrong are reported. One that
        another agent suspects is read."""
        good, suspect, trouble = [], stop.suspect, self.sealed.trouble()
        right = None
        for mark in self.sealed.seen():
            files = self.sealed[mark]
            if suspect is not None and mark == (suspect.attempt, suspect.step):
                files = self.sealed.read(self.name, mark, fails=False)
            if files is None:
                self.sealed.effects["file wrong"] += self.sealed[mark] is None
                self.said.append(BadCheckpoint(*mark, "wrong", fence=stop.fence))
                self.torn.add(mark)
            else:
                good.append(self.sealed.manifest(mark))
                if suspect is not None and mark == (suspect.attempt, suspect.step):
                    right = Mark(*mark)
        self.said.append(Listed(tuple(good), stop.fence, bool(trouble), trouble, right))

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
                if self.pending.op is Op.R:
                    self._check_lane()
                if self.pending.op is Op.LOAD:
                    assert self.manifest is not None
                    self.reads.append(self.manifest)
            elif type(effect) is Transmit:
                self.device.check_sent(self.name, effect.item)
                payload = self.backend.payload(effect.item)
                self.sent.append((effect.peer, (effect, payload)))
            elif type(effect) is Drop:
                self.device.check_freed(self.name, effect.items)
                for item in effect.items:
                    self.backend.drop(item)
            elif type(effect) is Retract:
                if effect.is_new:
                    self.backend.book.forget()
                else:
                    self.backend.book.retract()
            elif type(effect) is StepEnded:
                self.said.append(Progress(effect.commit, self.executor.fence))
            elif type(effect) is SendOperator:
                if isinstance(effect.message, AgentReport):
                    self.device.check_reported(self.name, effect.message)
                self._say(effect.message)

    def _check_lane(self) -> None:
        """Nothing is computed ahead while the program can go on."""
        executor = self.executor
        assert executor._program is not None
        task = executor._program[executor.at]
        is_compared = task.instruction.op is Op.VOTE and self.backend.compares
        if executor._may(task) and not is_compared:
            raise Violation(f"{self.name} runs {self.pending}, although {task.instruction} can run")

    def _say(self, message: Any) -> None:
        if isinstance(message, Left | Finished):
            self.farewell = message
            self._say_farewell()
            return
        if isinstance(message, AgentReport):
            self.farewell = None
            message = self._without_torn_files(message)
        self.said.append(message)

    def _say_farewell(self) -> None:
        if self.farewell is None or self.writes:
            return
        if isinstance(self.farewell, Left):  # nothing depends on its holdings from now on
            self.settled = frozenset()
        self.said.append(self.farewell)
        self.farewell = None

    def _without_torn_files(self, report: AgentReport) -> AgentReport:
        steps = {step for attempt, step in self.torn if attempt == report.fence.attempt}
        files = (item for item in report.items if item.kind is Kind.FILE)
        steps |= {item.step for item in files if self.backend.store[item] is None}
        self.torn.clear()
        if not steps:
            return report
        self.perform(self.executor.unsaved(steps))
        return replace(report, items=frozenset(self.executor.held))
