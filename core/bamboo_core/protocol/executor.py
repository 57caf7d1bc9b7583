"""The worker's control logic as a pure state machine: which instruction runs next, on what.

The shell (the torch worker, or the explorer's symbolic agent) feeds it events and performs its
effects. The payloads (tensors, symbols) live in the shell, under the same item names. The shell
issues one instruction at a time. A device may complete it later: see ``execution/issued.py``. The
executor never waits for a send. A RECV waits for an item by name. While the program waits for an
input, the executor runs what it can of the lane, which no program needs.

Fences: data is accepted only in the adopted fence, even before the program arrives. A STOP waits
for all that is issued, then drops program and votes and is answered with a report. No data of the
new fence can arrive before that report, since the plan is made from it.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field

from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.items import Item, Kind
from bamboo_core.model.program import COMPUTE, Instruction, Op, Program, layers_done
from bamboo_core.model.rules import Prepared, prepare, spoilt
from bamboo_core.protocol.effects import Drop as Drop
from bamboo_core.protocol.effects import Effect as Effect
from bamboo_core.protocol.effects import ProtocolError as ProtocolError
from bamboo_core.protocol.effects import Retract as Retract
from bamboo_core.protocol.effects import Run as Run
from bamboo_core.protocol.effects import SendOperator as SendOperator
from bamboo_core.protocol.effects import StepEnded as StepEnded
from bamboo_core.protocol.effects import Transmit as Transmit
from bamboo_core.protocol.execution.issued import BETWEEN, ON_DEVICE, Issued
from bamboo_core.protocol.execution.lane import AnySlice, Lane
from bamboo_core.protocol.execution.pending_files import PendingFiles
from bamboo_core.protocol.messages import (
    AgentReport,
    CommitRecord,
    Continuation,
    Directive,
    Finished,
    Left,
    Stop,
)


@dataclass
class Executor:
    """State of one agent's worker."""

    agent: AgentId
    layers: int
    fence: Fence = field(default_factory=Fence)  # newest adopted
    installed: Fence = field(default_factory=Fence)  # newest plan whose programs are installed
    directive: Directive | None = None
    continuation: Continuation | None = None
    step: int = 0
    at: int = 0  # index of the next instruction in the program
    ended: int = -1  # last step whose END has run
    held: dict[Item, bool] = field(default_factory=dict)  # item -> received, not computed here
    versions: dict[int, int] = field(default_factory=dict)  # layer -> version
    commits: dict[int, CommitRecord] = field(default_factory=dict)  # by step
    completed: int = 0  # instructions performed; never decreases
    ahead: int = 1  # instructions that the device may have at a time
    patience: AnySlice = field(default_factory=AnySlice)  # which slices of the lane may begin
    now: float = 0.0  # in seconds; a shell with a clock sets it before each event
    _program: tuple[Prepared, ...] | None = None
    _running: Prepared | None = None  # being issued by the shell
    _issued: Issued = field(default_factory=Issued)
    _lane: Lane = field(default_factory=Lane)
    _last_computation: int = -1  # its place in the program
    _continued: Set[Item] = frozenset()  # computed ahead, and continued by the program
    _is_again: bool = False  # the step is computed again, since it was void
    _asked: Stop | None = None  # waits for all that is issued
    _over: bool = False  # Left or Finished has been sent
    _files: PendingFiles = field(default_factory=PendingFiles)

    @property
    def running(self) -> Instruction | None:
        """The instruction that the device performs, or that the shell issues."""
        task = self._issued.first if self._issued else self._running
        return None if task is None else task.instruction

    @property
    def is_stopping(self) -> bool:
        """Whether a STOP waits for all that is issued."""
        return self._asked is not None

    @property
    def is_over(self) -> bool:
        """Whether it has no program, or has run all of it. False: it runs or waits."""
        return self._program is None or self._over

    @property
    def waits_for_files(self) -> bool:
        """Whether the program has ended but for files, of this agent or that it waits for."""
        if self.is_over or self._is_busy:
            return False
        task = self.current
        return (task is None or task.op is Op.EXIT) and self._files.are_due

    @property
    def awaited_record(self) -> Instruction | None:
        """The message that must bring the record of a file, if the program waits for nothing else;
        None: this agent's own files are not written, or it does not wait for files."""
        return self._files.awaited(self._programs(), self.held) if self.waits_for_files else None

    def _programs(self) -> tuple[Program, ...]:
        """All programs of the plan."""
        assert self.directive is not None
        rest = self.continuation
        return (self.directive.resume, *((rest.steady, rest.final) if rest is not None else ()))

    @property
    def current(self) -> Instruction | None:
        """The instruction that runs or waits for its inputs, with its absolute step."""
        if self._is_busy or self._program is None or self.at >= len(self._program):
            return self.running
        return self._program[self.at].instruction

    @property
    def _is_busy(self) -> bool:
        return self._running is not None or bool(self._issued.tasks)

    # ------------------------------------------------------------ events

    def stop(self, stop: Stop) -> list[Effect]:
        """Adopt the fence unless it is lower: drop program and votes, report. A repeated
        STOP may come when peers have begun the plan: votes of this fence are valid."""
        newest = self._asked.fence if self._asked is not None else self.fence
        if stop.fence < newest or (stop.fence == self.fence and self._program is not None):
            return []
        self._asked = stop
        return [] if self._is_busy else self._adopt()

    def install(self, directive: Directive) -> list[Effect]:
        """Begin the plan of the adopted fence. Any other directive is ignored."""
        if directive.fence != self.fence or self.installed == self.fence or self._is_busy:
            return []
        self.installed, self.directive, self.continuation = directive.fence, directive, None
        self.patience.begin_plan()
        self._enter(directive.target, directive.resume, directive.lane)
        # a new agent owes no END of earlier steps, and an agent that only received later items
        # has not ended the target step
        self.ended = min(max(self.ended, directive.target - 2), directive.target - 1)
        # of a step that others have ended: no END of this agent's frees it
        ahead = [i for i in self.held if i.kind is Kind.PREFIX and i.step <= self.ended]
        effects = self._drop(ahead)
        spare = Lane.surplus(self.held, directive.lane_limit, self._continued)
        effects += self._drop(spare, for_room=True)  # an older plan may have allowed more
        return effects + self._advance()

    def takes(self, continuation: Continuation) -> bool:
        """Whether this is the missing continuation of the installed plan."""
        directive = self.directive
        return (
            directive is not None
            and directive.has_continuation
            and self.continuation is None
            and continuation.fence == self.fence == self.installed
            and continuation.plan_hash == directive.plan_hash
        )

    def proceed(self, continuation: Continuation) -> list[Effect]:
        """Keep the programs to run after ``resume``. Any other continuation is ignored."""
        if not self.takes(continuation):
            return []
        self.continuation = continuation
        return self._advance()

    def accepts(self, item: Item, fence: Fence) -> bool:
        """Whether a peer's item would be accepted. Ask before storing its payload."""
        if fence != self.fence or self._is_stale(item) or self._issued.makes(item):
            return False
        if item.kind is Kind.VER:
            return self.versions.get(item.lo, -1) < item.step
        return item not in self.held

    def arrive(self, item: Item, fence: Fence, commit: CommitRecord | None = None) -> list[Effect]:
        """A peer's item has arrived and its payload is stored.

        A stale item is answered with a Drop, unless an item of that name is already held: that
        one is valid, and the late copy was not stored.
        """
        if fence != self.fence or self._is_stale(item):
            is_here = item.kind is Kind.VER or item in self.held
            return [] if is_here or self._issued.makes(item) else [Drop((item,))]
        if not self._issued.makes(item):
            if item.kind is Kind.VER:
                self.versions[item.lo] = max(item.step, self.versions.get(item.lo, -1))
            else:
                self.held.setdefault(item, True)
        if commit is not None:
            self._learn(commit)
        self.patience.arrive(item, self.now)
        return self._advance()

    def issued(self) -> list[Effect]:
        """The device has the running instruction, and will complete it: go on."""
        task, self._running = self._running, None
        if task is None or task.instruction.op not in ON_DEVICE:
            raise ProtocolError(f"{task and task.instruction} completes at once")
        self._issued = self._issued.then(task)
        self.at += task.instruction.op not in _BESIDE
        return self._advance()

    def done(self, commit: CommitRecord | None = None) -> list[Effect]:
        """The oldest instruction that is issued or running has completed on the device. COMMIT:
        with its record."""
        if self._issued:
            task, self._issued = self._issued.first, self._issued.without_first()
        elif self._running is not None:
            task, self._running = self._running, None
            self.at += task.instruction.op not in _BESIDE
        else:
            raise ProtocolError("done without a running instruction")
        self.completed += 1
        effects = self._account(task, commit)
        while self._issued and self._issued.first.instruction.op in BETWEEN:
            effects += self._between(self._issued.first.instruction)
            self._issued = self._issued.without_first()
        if task.instruction.op is Op.R:
            self.patience.end(task.instruction, self.now)
        if self._asked is not None:
            return effects if self._is_busy else effects + self._adopt()
        return effects + self._advance()

    def abandon(self) -> list[Effect]:
        """The running instruction has failed (a torn file, the user's code): wait for a STOP. What
        it may have changed is dropped."""
        if self.running is not None and self.running.op is Op.SAVE:
            self._files.give_up(self.running)
        effects = [] if self._running is None else self._drop(spoilt(self._running))
        self._running, self._program = None, None
        return effects + (self._adopt() if self._asked is not None else [])

    def skip(self) -> list[Effect]:
        """The running slice of the lane made nothing: what is left of its forward is left out."""
        if self.running is None or self.running.op is not Op.R:
            raise ProtocolError(f"{self.running} is skipped, but the program needs it")
        self._lane = self._lane.without(self.running.index)
        self._running = None
        return self._adopt() if self._asked is not None else self._advance()

    def saved(self, item: Item) -> list[Effect]:
        """A file has been written: hold its FILE record and send it to the peers that need it."""
        if item not in self._files.saving:  # two plans may have saved it
            return [] if item in self.held else [Drop((item,))]
        self._files.saving.discard(item)
        self.held[item] = False
        effects: list[Effect] = [
            Transmit(item, peer, self.fence) for peer in self._files.owed.pop(item, ())
        ]
        return effects + self._advance()

    def unsaved(self, steps: Set[int]) -> list[Effect]:
        """Drop the FILE records of unreadable checkpoints of this attempt."""
        return self._drop([i for i in self.held if i.kind is Kind.FILE and i.step in steps])

    # ------------------------------------------------------------ stopping

    def _adopt(self) -> list[Effect]:
        """The pending STOP takes effect and is answered with a report."""
        stop, self._asked = self._asked, None
        assert stop is not None
        effects: list[Effect] = []
        if stop.fence.attempt > self.fence.attempt:
            effects += self._wipe()
        elif self.fence < stop.void:
            effects += self._give_up_step()
        if stop.fence != self.fence:
            effects += self._drop([i for i in self.held if i.kind is Kind.VOTE])
        self.fence, self._program, self._over = stop.fence, None, False
        self._files.begin_plan()
        return [*effects, SendOperator(self._report())]

    def _wipe(self) -> list[Effect]:
        """A new attempt begins: drop everything of the old one."""
        items = [*self.held, *self._files.saving]
        items += [Item.ver(v, x) for x, v in sorted(self.versions.items())]
        self.versions.clear()
        self.commits.clear()
        self._files.saving.clear()
        self.ended, self._is_again = -1, False
        return [*self._drop(items), Retract(is_new=True)]

    def _give_up_step(self) -> list[Effect]:
        """Wrong bits may be in any result of a step that is not committed; versions have none."""
        self._is_again = True
        gone = [i for i in self.held if i.kind is not Kind.FILE and i.step not in self.commits]
        return [*self._drop(gone), Retract(is_new=False)]

    def _report(self) -> AgentReport:
        return AgentReport(
            fence=self.fence,
            installed=self.installed,
            versions=dict(self.versions),
            items=frozenset(self.held),
            commits=tuple(self.commits[k] for k in sorted(self.commits)),
            ended=self.ended,
        )

    # ------------------------------------------------------------ running the program

    def _enter(self, step: int, program: Program, lane: Program) -> None:
        assert self.directive is not None
        self.step, self.at = step, 0
        self._program = prepare(program, step, self.directive.batch, self.layers)
        items = (item for task in self._program for item in task.items)
        self._continued = frozenset(item for item in items if item.kind is Kind.PREFIX)
        ops = [task.instruction.op for task in self._program]
        self._last_computation = max((i for i, op in enumerate(ops) if op in COMPUTE), default=-1)
        self._lane = Lane.of(prepare(lane, step, self.directive.batch, self.layers))

    def _advance(self) -> list[Effect]:
        """Perform what needs no shell, up to the next instruction that does or that must wait."""
        effects: list[Effect] = []
        while self._can_issue and self._program is not None:
            seals = self._files.seals
            seal = next((s for s in seals if self._may(s)), None) if seals else None
            if seal is not None:
                self._running = seal
                self._files.seals = tuple(s for s in seals if s is not seal)
                effects.append(Run(seal.instruction))
            elif self.at >= len(self._program):
                if not self._next_program(effects):
                    break
            elif not self._start(self._program[self.at], effects):
                # not after the last computation: all agents wait for each other then
                if self.at <= self._last_computation and not self._issued:
                    self.patience.wait(self._program[self.at].instruction.item, self.now)
                    self._fill(effects)
                break
        return effects

    @property
    def _can_issue(self) -> bool:
        if self._issued.tasks and (self._asked is not None or self._issued.on_device >= self.ahead):
            return False
        return self._running is None and not self._over

    def _fill(self, effects: list[Effect], *, for_vote: bool = False) -> bool:
        """Begin the next slice of the lane. False: none can run, or the program's input is near."""
        directive, may_run = self.directive, self._is_compared if for_vote else self._may
        assert directive is not None
        if for_vote and not directive.compares:
            return False
        found = self._lane.next(may_run, self.held, directive.lane_limit, self._continued)
        if found is None or not (for_vote or self.patience.allows(found[0].instruction, self.now)):
            return False
        self._running, self._lane, dropped = found
        self.patience.begin(self.now)
        effects += self._drop(dropped, for_room=True)
        effects.append(Run(self._running.instruction))
        return True

    def _is_compared(self, ahead: Prepared) -> bool:
        """Whether the vote waits for this slice: its forward has begun, or all are wanted."""
        return (self._is_again or layers_done(ahead.instruction) > 0) and self._may(ahead)

    def _may(self, task: Prepared) -> bool:
        """Whether all its inputs are here, or will be once what is issued has completed."""
        if self._issued.tasks:
            return self._issued.lets(task, self.held, self.versions)
        for layer, version in task.versions:
            if self.versions.get(layer) != version:
                return False
        held = self.held
        for item in task.items:  # noqa: SIM110 - a generator costs twice as much
            if item not in held:
                return False
        return True

    def _start(self, task: Prepared, effects: list[Effect]) -> bool:
        """Perform or start the next instruction. False: it must wait."""
        instruction = task.instruction
        if self._files.puts_aside(task, self.held):
            self.at += 1
            return True
        if not self._may(task):
            return False
        if instruction.op is Op.VOTE and self._fill(effects, for_vote=True):
            return True  # a comparison goes before it, and needs nothing of another agent
        if instruction.op is Op.EXIT:
            if self._files.are_due:
                return False
            self._over = True
            effects.append(SendOperator(Left(self.fence)))
        elif instruction.op is Op.RECV:
            self.at += 1
        elif instruction.op in BETWEEN:
            self.at += 1
            if self._issued:
                self._issued = self._issued.then(task)
            else:
                effects += self._between(instruction)
        else:
            if instruction.op is Op.SAVE:
                self._files.begin(instruction)
            self._running = task
            effects.append(Run(instruction))
        return True

    def _between(self, instruction: Instruction) -> list[Effect]:
        """SEND or END: all before it has completed."""
        is_end = instruction.op is Op.END
        return self._end(instruction.step) if is_end else [self._transmit(instruction)]

    def _transmit(self, send: Instruction) -> Transmit:
        item = send.item
        assert item is not None
        commit = None
        if item.kind is Kind.VER:
            commit = self.commits.get(item.step - 1)
        elif item.kind is Kind.COMMIT:
            commit = self.commits[item.step]
        return Transmit(item, send.peer, self.fence, commit)

    def _next_program(self, effects: list[Effect]) -> bool:
        directive = self.directive
        assert directive is not None
        if self.step >= directive.last:
            if not (self._files.are_due or self._issued):
                self._over = True
                effects.append(SendOperator(Finished(self.fence)))
            return False
        rest = self.continuation
        if rest is None:  # the operator still computes it: keep all state and wait
            return False
        self.patience.begin_step()
        is_last = self.step + 1 == directive.last
        self._enter(self.step + 1, *((rest.final, ()) if is_last else (rest.steady, rest.lane)))
        return True

    def has(self, item: Item) -> bool:
        """Whether the item is here (VER: at exactly this version)."""
        if item.kind is Kind.VER:
            return self.versions.get(item.lo) == item.step
        return item in self.held

    def _is_stale(self, item: Item) -> bool:
        if item.kind in (Kind.VER, Kind.FILE):
            return False
        floor = self.ended + 1
        if item.kind in (Kind.RED, Kind.COMMIT):
            floor -= 1  # a slower agent may still need the last step's gradients and commit
        return item.step < floor

    # ------------------------------------------------------------ facts

    def _account(self, task: Prepared, commit: CommitRecord | None) -> list[Effect]:
        effects = self._drop([*task.gone, *(i for i in task.releases if self.held.get(i))])
        self.versions.update(task.versions_made)
        self.held.update(dict.fromkeys(task.items_made, False))
        instruction = task.instruction
        if instruction.op is Op.VOTE:
            self.held[Item.vote(instruction.step, self.agent)] = False
        elif instruction.op is Op.COMMIT:
            effects += self._committed(instruction, commit)
        return effects

    def _committed(self, instruction: Instruction, commit: CommitRecord | None) -> list[Effect]:
        if commit is None:
            raise ProtocolError("COMMIT completed without its record")
        if not instruction.agents:  # of the final program: the last validation's loss
            return [StepEnded(commit)]
        self._learn(commit)
        return []

    def _learn(self, commit: CommitRecord) -> None:
        self.commits[commit.step] = commit
        self.held.setdefault(Item.commit(commit.step), True)

    def _end(self, step: int) -> list[Effect]:
        """Free what the step retained. Unwanted layers are freed one step after the target."""
        directive = self.directive
        assert directive is not None
        self.ended, self._is_again = max(self.ended, step), False
        kept = {item for seal in self._files.seals for item in seal.items}  # files may be slow
        gone = [i for i in self.held if self._is_spent(i, step) and i not in kept]
        if step > directive.target:
            wanted = {x for lo, hi in directive.wanted for x in range(lo, hi)}
            for layer in sorted(set(self.versions) - wanted):
                gone.append(Item.ver(self.versions.pop(layer), layer))
        effects: list[Effect] = [StepEnded(self.commits[step])]
        for old in [k for k in self.commits if k < step and Item.commit(k) not in kept]:
            del self.commits[old]
        return self._drop(gone) + effects

    def _is_spent(self, item: Item, step: int) -> bool:
        is_later = item.kind in (Kind.FILE, Kind.COMMIT, Kind.RED)
        return item.step < step if is_later else item.step <= step

    def _drop(self, items: list[Item], *, for_room: bool = False) -> list[Effect]:
        for item in items:
            self.held.pop(item, None)
        return [Drop(tuple(items), for_room)] if items else []


_BESIDE = frozenset({Op.SEAL, Op.R})
"""Not in the order of the program."""
