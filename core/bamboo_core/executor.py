"""The worker's control logic as a pure state machine: which instruction runs next, on what.

The shell (torch worker, or the explorer's symbolic agent) feeds it events and performs its effects;
the payloads (tensors, symbols) live in the shell, under the same item names. At most one instruction
runs at a time; sends are handed over and never waited for; everything received is taken by name.

Fences: data is taken in the adopted fence only, even before its program has come; a STOP drops
program and votes and is answered with facts as soon as the running instruction has completed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from bamboo_core.ids import AgentId, Fence
from bamboo_core.items import Item, Kind
from bamboo_core.messages import CommitRecord, Directive, Finished, Left, Report, Stop
from bamboo_core.numerics import BatchShape
from bamboo_core.program import Instruction, Op, Program

# ---------------------------------------------------------------- effects


@dataclass(frozen=True)
class Run:
    """Perform the instruction (steps are absolute here), then call :meth:`Executor.done`."""

    instruction: Instruction


@dataclass(frozen=True)
class Transmit:
    """Send the item to the peer, in this fence; VER travels with the commit record before it."""

    item: Item
    peer: AgentId
    fence: Fence
    commit: CommitRecord | None = None


@dataclass(frozen=True)
class Drop:
    """Forget these payloads (VER: the layer's whole state)."""

    items: tuple[Item, ...]


@dataclass(frozen=True)
class Say:
    """Tell the operator."""

    message: Report | Finished | Left


@dataclass(frozen=True)
class StepEnded:
    """END of a step has run."""

    commit: CommitRecord


Effect = Run | Transmit | Drop | Say | StepEnded


class ProtocolError(Exception):
    """An instruction met a state that no correct program leads to: the worker must end."""


# ---------------------------------------------------------------- what instructions need and make


def needs(instruction: Instruction, batch: BatchShape, layers: int) -> Iterator[Item]:
    """Items (VER included) that must be held before the instruction may run."""
    op, k, lo, hi, m = instruction[:5]
    if op in (Op.F, Op.I, Op.B, Op.V, Op.UPDATE, Op.SAVE):
        yield from versions(lo, hi, k)
    if op in (Op.F, Op.V) and lo:
        yield Item(Kind.OUT if op is Op.F else Kind.EVAL, k, lo, 0, m)
    elif op in (Op.I, Op.B, Op.W):
        yield Item(Kind.ACT, k, lo, hi, m)
        if hi < layers:
            yield Item(Kind.INGRAD, k, hi, 0, m)
        if op is not Op.I and m % batch.leaf_size:
            leaf = batch.leaf_of(m)
            yield Item(Kind.PART, k, lo, hi, leaf, m % batch.leaf_size)
    elif op is Op.FOLD:
        yield Item(Kind.LEAF, k, lo, hi, m)
        done = m - batch.leaves_of(batch.chunk_of(m)).start
        if done:
            yield Item(Kind.FOLDED, k, lo, hi, batch.chunk_of(m), done)
    elif op is Op.REDUCE:
        for c in range(batch.chunks):
            yield Item(Kind.CHUNK, k, lo, hi, c, m)
    elif op is Op.VOTE:
        yield from _vote_needs(instruction, batch)
    elif op is Op.COMMIT:
        for agent in instruction.agents:
            yield Item(Kind.VOTE, k, agent=agent)
    elif op is Op.UPDATE:
        yield from reduced(instruction.ranges[0], k, batch)
        yield Item(Kind.COMMIT, k)
    elif op is Op.END:
        yield Item(Kind.COMMIT, k)
    elif op is Op.SEAL:
        for layer in range(layers):
            yield Item(Kind.FILE, k, layer, layer + 1)
    elif op is Op.EXIT and instruction.item is not None:
        yield instruction.item
    elif op in (Op.SEND, Op.RECV):
        assert instruction.item is not None
        yield instruction.item


def _vote_needs(vote: Instruction, batch: BatchShape) -> Iterator[Item]:
    """``ranges``: cut ranges whose reduced gradients, [lo:hi] lists whose versions, it vouches for.

    A vote's ranges are cut ranges; the layers of them that the agent holds stand in ``item``-free
    form in the following ranges: (cut range, held range) pairs, flattened.
    """
    for cut, held in zip(vote.ranges[::2], vote.ranges[1::2], strict=True):
        yield from reduced(cut, vote.step, batch)
        yield from versions(*held, vote.step)


def versions(lo: int, hi: int, step: int) -> Iterator[Item]:
    """VER items of the layers lo..hi-1."""
    for layer in range(lo, hi):
        yield Item(Kind.VER, step, layer, layer + 1)


def reduced(cut: tuple[int, int], step: int, batch: BatchShape) -> Iterator[Item]:
    """All slices of the reduced gradient of one cut range."""
    for z in range(batch.chunks):
        yield Item(Kind.RED, step, *cut, 0, z)


def makes(instruction: Instruction, batch: BatchShape, layers: int) -> Iterator[Item]:
    """Items (VER included) that exist on the agent once the instruction has completed."""
    op, k, lo, hi, m = instruction[:5]
    if op is Op.INIT or op is Op.LOAD:
        yield from versions(lo, hi, k)
    elif op is Op.F:
        yield Item(Kind.ACT, k, lo, hi, m)
        if hi < layers:
            yield Item(Kind.OUT, k, hi, 0, m)
    elif op is Op.V:
        last = hi == layers
        yield Item(Kind.SCORE, k, 0, 0, m) if last else Item(Kind.EVAL, k, hi, 0, m)
    elif op in (Op.I, Op.B) and lo:
        yield Item(Kind.INGRAD, k, lo, 0, m)
    elif op is Op.REDUCE:
        yield Item(Kind.RED, k, lo, hi, 0, m)
    elif op is Op.COMMIT:
        yield Item(Kind.COMMIT, k)
    elif op is Op.UPDATE:
        yield from versions(lo, hi, k + 1)
    if op in (Op.B, Op.W):
        leaf, into = batch.leaf_of(m), m % batch.leaf_size + 1
        full = into == batch.leaf_size
        yield Item(Kind.LEAF, k, lo, hi, leaf) if full else Item(Kind.PART, k, lo, hi, leaf, into)
    elif op is Op.FOLD:
        c = batch.chunk_of(m)
        folded = m - batch.leaves_of(c).start + 1
        if folded < len(batch.leaves_of(c)):
            yield Item(Kind.FOLDED, k, lo, hi, c, folded)
        else:
            for z in range(batch.chunks):
                yield Item(Kind.CHUNK, k, lo, hi, c, z)


def uses_up(instruction: Instruction, batch: BatchShape, layers: int) -> Iterator[Item]:
    """Items that are gone afterwards wherever they came from: replaced, or of no further use."""
    op, k, lo, hi, m = instruction[:5]
    if op in (Op.B, Op.W):
        yield Item(Kind.ACT, k, lo, hi, m)
        if m % batch.leaf_size:
            yield Item(Kind.PART, k, lo, hi, batch.leaf_of(m), m % batch.leaf_size)
    elif op is Op.FOLD:
        yield Item(Kind.LEAF, k, lo, hi, m)
        done = m - batch.leaves_of(batch.chunk_of(m)).start
        if done:
            yield Item(Kind.FOLDED, k, lo, hi, batch.chunk_of(m), done)
    elif op is Op.UPDATE:
        yield from versions(lo, hi, k)


def releases(instruction: Instruction, layers: int) -> Iterator[Item]:
    """Items that are dropped afterwards if they were received: their maker keeps them until END."""
    op, k, lo, hi, m = instruction[:5]
    if op is Op.F and lo:
        yield Item(Kind.OUT, k, lo, 0, m)
    elif op is Op.V and lo:
        yield Item(Kind.EVAL, k, lo, 0, m)
    elif op in (Op.B, Op.W) and hi < layers:
        yield Item(Kind.INGRAD, k, hi, 0, m)


# ---------------------------------------------------------------- the machine


@dataclass
class Executor:
    """State of one agent's worker. ``held``: item -> whether it was received (not made here)."""

    agent: AgentId
    layers: int
    fence: Fence = Fence()
    installed: Fence = Fence()
    directive: Directive | None = None
    step: int = 0
    at: int = 0
    ended: int = -1
    held: dict[Item, bool] = field(default_factory=dict)
    versions: dict[int, int] = field(default_factory=dict)
    commits: dict[int, CommitRecord] = field(default_factory=dict)
    completed: int = 0
    _program: Program | None = None
    _running: Instruction | None = None
    _asked: Stop | None = None
    _over: bool = False

    @property
    def running(self) -> Instruction | None:
        """The instruction that the shell is performing."""
        return self._running

    @property
    def current(self) -> Instruction | None:
        """The instruction that runs or is waited for, with its absolute step."""
        if self._running is not None:
            return self._running
        if self._program is None or self.at >= len(self._program):
            return None
        return self._absolute(self._program[self.at])

    # ------------------------------------------------------------ events

    def stop(self, stop: Stop) -> list[Effect]:
        """A STOP of a fence that is not lower: adopt it, drop program and votes, report."""
        if stop.fence < self.fence:
            return []
        effects: list[Effect] = []
        if stop.fence > self.fence:
            if stop.fence.attempt > self.fence.attempt:
                effects += self._wipe()
            effects += self._drop([i for i in self.held if i.kind is Kind.VOTE])
            self.fence, self._program, self._over = stop.fence, None, False
        if self._program is None:
            self._asked = stop
            effects += self._report()
        return effects

    def install(self, directive: Directive) -> list[Effect]:
        """Programs of the adopted fence; any other directive is ignored."""
        if directive.fence != self.fence or self.installed == self.fence or self._running:
            return []
        self.installed, self.directive = directive.fence, directive
        self.step, self.at, self._program = directive.target, 0, directive.resume
        # a newcomer owes no END of steps before the one that the plan resumes
        self.ended = max(self.ended, directive.target - 2)
        return self._advance()

    def arrive(self, item: Item, fence: Fence, commit: CommitRecord | None = None) -> list[Effect]:
        """A peer's item, its payload already stored. Not wanted: answered with a Drop."""
        if fence != self.fence or self._is_stale(item):
            return [Drop((item,))]
        if item.kind is Kind.VER:
            if self.versions.get(item.lo, -1) < item.step:
                self.versions[item.lo] = item.step
            if commit is not None:
                self._learn(commit)
        elif item not in self.held:
            self.held[item] = True
            if item.kind is Kind.COMMIT and commit is not None:
                self._learn(commit)
        return self._advance()

    def done(self, commit: CommitRecord | None = None) -> list[Effect]:
        """The running instruction has completed on the device (COMMIT: with its record)."""
        instruction, self._running = self._running, None
        if instruction is None:
            raise ProtocolError("done without a running instruction")
        self.completed += 1
        effects = self._account(instruction, commit)
        if self._program is None:
            return effects + self._report()
        self.at += 1
        return effects + self._advance()

    def abandon(self) -> list[Effect]:
        """The running instruction cannot be performed (a torn file): no facts, wait for a STOP."""
        self._running, self._program = None, None
        return self._report()

    def saved(self, item: Item) -> list[Effect]:
        """A SAVE in the background has finished: the FILE record exists here."""
        if self._is_stale(item):
            return [Drop((item,))]
        self.held[item] = False
        return self._advance()

    # ------------------------------------------------------------ inner workings

    def _absolute(self, instruction: Instruction) -> Instruction:
        item = instruction.item
        if item is not None:
            item = item._replace(step=item.step + self.step)
        return instruction._replace(step=instruction.step + self.step, item=item)

    def _advance(self) -> list[Effect]:
        """Pass over everything that needs no shell's work; start what does."""
        effects: list[Effect] = []
        while self._running is None and self._program is not None and not self._over:
            if self.at >= len(self._program):
                if not self._next_program(effects):
                    break
                continue
            instruction = self._absolute(self._program[self.at])
            if self._is_skipped(instruction):
                self.at += 1
                continue
            assert self.directive is not None
            if not all(self.has(i) for i in needs(instruction, self.directive.batch, self.layers)):
                break
            effects += self._start(instruction)
        return effects

    def _start(self, instruction: Instruction) -> list[Effect]:
        op = instruction.op
        if op is Op.SEND:
            self.at += 1
            assert instruction.item is not None
            return [self._transmit(instruction)]
        if op is Op.RECV:
            self.at += 1
            return []
        if op is Op.END:
            self.at += 1
            return self._end(instruction.step)
        if op is Op.EXIT:
            self._over = True
            return [Say(Left())]
        self._running = instruction
        return [Run(instruction)]

    def _transmit(self, instruction: Instruction) -> Transmit:
        item = instruction.item
        assert item is not None
        commit = None
        if item.kind is Kind.VER:
            commit = self.commits.get(item.step - 1)
        elif item.kind is Kind.COMMIT:
            commit = self.commits[item.step]
        return Transmit(item, instruction.peer, self.fence, commit)

    def _next_program(self, effects: list[Effect]) -> bool:
        directive = self.directive
        assert directive is not None
        if self.step >= directive.last:
            self._over = True
            effects.append(Say(Finished(self.fence)))
            return False
        self.step, self.at = self.step + 1, 0
        self._program = directive.final if self.step == directive.last else directive.steady
        return True

    def _is_skipped(self, instruction: Instruction) -> bool:
        return instruction.every > 1 and instruction.step % instruction.every != 0

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
            floor -= 1  # a laggard may still need the last step's gradients and commit
        return item.step < floor

    def _account(self, instruction: Instruction, commit: CommitRecord | None) -> list[Effect]:
        directive = self.directive
        assert directive is not None
        batch, layers = directive.batch, self.layers
        gone = list(uses_up(instruction, batch, layers))
        gone += [i for i in releases(instruction, layers) if self.held.get(i)]
        effects = self._drop([i for i in gone if i.kind is not Kind.VER])
        for item in makes(instruction, batch, layers):
            if item.kind is Kind.VER:
                self.versions[item.lo] = item.step
            else:
                self.held[item] = False
        if instruction.op is Op.VOTE:
            self.held[Item(Kind.VOTE, instruction.step, agent=self.agent)] = False
        elif instruction.op is Op.COMMIT:
            if commit is None:
                raise ProtocolError("COMMIT completed without its record")
            self._learn(commit)
        return effects

    def _learn(self, commit: CommitRecord) -> None:
        self.commits[commit.step] = commit
        self.held.setdefault(Item(Kind.COMMIT, commit.step), True)

    def _end(self, step: int) -> list[Effect]:
        """Free what the step retained; unwanted layers go one step after the plan's entry."""
        directive = self.directive
        assert directive is not None
        self.ended = max(self.ended, step)
        gone = [i for i in self.held if self._is_spent(i, step)]
        if step > directive.target:
            wanted = {x for lo, hi in directive.wanted for x in range(lo, hi)}
            for layer in sorted(set(self.versions) - wanted):
                gone.append(Item(Kind.VER, self.versions.pop(layer), layer, layer + 1))
        effects: list[Effect] = [StepEnded(self.commits[step])]
        for old in [k for k in self.commits if k < step]:
            del self.commits[old]
        return self._drop(gone) + effects

    @staticmethod
    def _is_spent(item: Item, step: int) -> bool:
        if item.kind is Kind.FILE:
            return item.step < step  # a slow writer's record must outlive its step
        if item.kind in (Kind.COMMIT, Kind.RED):
            return item.step < step
        return item.step <= step

    def _drop(self, items: list[Item]) -> list[Effect]:
        for item in items:
            self.held.pop(item, None)
        return [Drop(tuple(items))] if items else []

    def _wipe(self) -> list[Effect]:
        """A new attempt: nothing of the old one counts."""
        items = list(self.held)
        items += [Item(Kind.VER, v, x, x + 1) for x, v in sorted(self.versions.items())]
        self.versions.clear()
        self.commits.clear()
        self.ended = -1
        return self._drop(items)

    def _report(self) -> list[Effect]:
        if self._asked is None or self._running is not None:
            return []
        stop, self._asked = self._asked, None
        commits = tuple(self.commits[k] for k in sorted(self.commits))
        return [
            Say(
                Report(
                    fence=stop.fence,
                    installed=self.installed,
                    versions=dict(self.versions),
                    items=frozenset(self.held),
                    commits=commits,
                    ended=self.ended,
                )
            )
        ]
