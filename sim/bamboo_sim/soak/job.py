"""One long-lived job of real agents: round after round of faults, each followed by a comparison."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from itertools import count, pairwise
from pathlib import Path

from bamboo_core.api.events import EventFact, EventReason, RestoreCause
from bamboo_core.api.outcome import Outcome
from bamboo_core.arbiter_state.events import ArbiterPhase, Timing
from bamboo_core.model.ids import AgentId
from bamboo_sim.fleet.local_fleet import ForkServerProcess, LocalFleet
from bamboo_sim.fleet.runs.campaign import Campaign
from bamboo_sim.programs.sample import Sample
from bamboo_sim.soak import kinds, losses
from bamboo_sim.soak.kinds import POLL_S, VOLUME, Injected, Injector
from bamboo_sim.soak.losses import Loss, Recovery
from bamboo_sim.soak.reference import Grid, Reference
from bamboo_sim.soak.watch import Watch

STALL_S = 60.0
STEADY_S = 20.0
"""How long a round waits for a plan without holes before it takes the plan as it is."""
SPARE = 1
"""Agents beyond the grid's seats, so that a round need not wait for a new process."""
EVERY_STEPS = 10
MOST_ROUNDS = 7
"""Rounds of a job, without its last one. So one of eight rounds meets the last write."""
LAST_STEPS = 60
"""A round is the last one if so few steps are left before it: another one could end the job."""
ROUNDS, FAULTS = "rounds", "faults with an effect"
IN_VAIN = " (without effect)"
TIMING = Timing(
    start_grace_s=0.2,
    join_grace_s=0.2,
    voter_wait_s=10.0,
    instruction_floor_s=kinds.INSTRUCTION_FLOOR_S,
)


@dataclass(frozen=True)
class Round:
    """One group of faults. kinds: faults that have acted; idle: those that have not; effects: how
    often each kind has acted; did: what was injected; pause_s: longest time between two commits;
    restored: not counting that after a suspension; copies_alive: losses after which a copy of every
    layer lived; recovered: those of them that cost no step; repeated: committed steps that were
    committed again; unexplained: long times without a commit that the job has not explained."""

    grid: str
    kinds: str
    did: str
    seconds: float
    pause_s: float
    voter_wait_s: float
    restored: bool
    unequal: bool
    stalled: bool = False
    lost: bool = False
    failure: str = ""
    idle: str = ""
    effects: dict[str, int] = field(default_factory=dict)
    copies_alive: int = 0
    recovered: int = 0
    repeated: int = 0
    unexplained: int = 0

    @property
    def faults(self) -> int:
        """Number of faults that have acted."""
        return len(self.kinds.split("+")) if self.kinds else 0


class StalledError(Exception):
    """No commit for STALL_S, although enough agents can be reached."""


class LostError(Exception):
    """The job has ended, but nobody wanted it to."""


class CompletedError(Exception):
    """The job has run all its steps before the round was over; so the round does not count."""


@dataclass(frozen=True)
class _Before:
    """What was known before the faults of a round. began: time.monotonic()."""

    began: float
    voter_wait_s: float
    attempt: int
    unexplained: int
    exits: frozenset[AgentId]


class SoakedJob:
    """A fleet that trains one job. ``fleet`` must be started."""

    def __init__(
        self, fleet: LocalFleet, grid: Grid, reference: Reference, chance: random.Random
    ) -> None:
        self._fleet, self._grid, self._chance = fleet, grid, chance
        self._watch = Watch(fleet, reference)
        self._campaign = Campaign(fleet)
        self._replaced: set[AgentId] = set()
        self._newcomers = 0
        self._injector: Injector | None = None
        self._doomed: set[AgentId] = set()
        self._going: set[AgentId] = set()
        self._losses: list[Loss] = []
        self._before = self._look()

    async def rounds(self, sample: Sample) -> AsyncIterator[Round]:
        """Rounds until the job has run all its steps, or the sample is over. The last one may have
        failed; the job is of no use then."""
        operator = self._fleet.operator
        operator.change_goal(pipelines=self._grid.pipelines)
        await self._fleet.add(self._grid.agents(self._grid.seats + SPARE))
        refill = asyncio.create_task(self._refill())
        try:
            await self._wait(self._is_steady)
            for number in count():
                if sample.is_over:
                    break
                sample.begin()
                is_last = number >= MOST_ROUNDS or self._steps_left() <= LAST_STEPS
                yield (done := await self._round(is_last=is_last))
                sample.add(ROUNDS, done.faults > 0)
                sample.add(FAULTS, done.faults)
                if done.failure or is_last:
                    return
            await self._suspend()
        except CompletedError:
            self._watch.read_states()
            if (done := self._describe(None, self._acted())).failure:
                yield done
        except (StalledError, LostError) as error:
            yield self._describe(error, self._acted())
        finally:
            refill.cancel()
            await asyncio.gather(refill, return_exceptions=True)

    def _steps_left(self) -> int:
        return self._fleet.spec.training.steps - 1 - self._watch.newest

    def _look(self) -> _Before:
        watch, exits = self._watch, frozenset(self._fleet.exits)
        numbers = (watch.voter_wait_s, watch.attempt, watch.unexplained)
        return _Before(time.monotonic(), *numbers, exits)

    async def _round(self, *, is_last: bool) -> Round:
        """CompletedError, but not from the last round."""
        chosen = [kinds.LAST] if is_last else kinds.choose(self._chance)
        self._injector, self._losses = None, []
        self._before = before = self._look()
        error: Exception | None = None
        acted: list[tuple[Injected, int]] | None = None
        try:
            await self._wait(self._has_plan)
            await self._wait(self._is_steady, most_s=STEADY_S)
            self._before = replace(self._look(), voter_wait_s=before.voter_wait_s)
            doomed = await self._inject(chosen)
            await (self._complete() if is_last else self._recover())
            acted = self._acted()
            self._take_away(doomed)
        except (StalledError, LostError) as caught:
            error = caught
        return self._describe(error, self._acted() if acted is None else acted)

    async def _inject(self, chosen: list[str]) -> set[AgentId]:
        """Inject faults at the same time, then end those that do not end by themselves. Agents that
        will not come back."""
        self._injector = injector = Injector(self._fleet, self._chance, self._note_loss)
        try:
            await asyncio.gather(*(injector.inject(kind) for kind in chosen))
        finally:
            injector.heal()
            self._doomed |= injector.doomed
            self._going |= injector.going
        return injector.doomed

    def _note_loss(self, agent: AgentId) -> None:
        """An agent is about to be lost for ever."""
        if agent not in self._fleet.exits:
            self._losses.append(Loss(agent, self._watch.holders()))

    async def _recover(self) -> None:
        """Wait for a step after the faults, and compare it."""
        self._watch.look()
        step = self._watch.next_hashed()

        def is_compared() -> bool:
            if self._watch.newest <= step:
                return False
            self._watch.read_states()
            return self._watch.is_compared(step)

        await self._wait(is_compared)

    async def _complete(self) -> None:
        """Wait for the end of the job, and compare what it has written."""
        with contextlib.suppress(CompletedError):
            await self._wait(lambda: False)
        self._watch.read_states()
        self._watch.read_checkpoint()

    def _acted(self) -> list[tuple[Injected, int]]:
        """Each fault of this round, and how often it has had its effect."""
        return [] if self._injector is None else self._injector.acted()

    def _take_away(self, doomed: set[AgentId]) -> None:
        """The nodes of agents that do not come back go away at last."""
        self._fleet.remove(*(doomed - self._fleet.exits.keys()))

    async def _suspend(self) -> None:
        """End the job in order: CompletedError."""
        self._fleet.operator.change_goal(suspended=True)
        await self._wait(lambda: False)

    # ------------------------------------------------------------ waiting

    async def _wait(self, condition: Callable[[], bool], *, most_s: float = math.inf) -> None:
        """Wait until the condition holds, at most so long. StalledError, LostError,
        CompletedError."""
        began, waited = time.monotonic(), self._watch.voter_wait_s
        while not condition():
            self._watch.look()
            over = self._fleet.operator.over
            if over is not None:
                is_right = over.outcome in (Outcome.COMPLETE, Outcome.SUSPENDED)
                raise CompletedError() if is_right else LostError(str(over))
            now = time.monotonic()
            if now - began > most_s:
                return
            quiet_s = now - max(began, self._watch.commits[-1])
            if quiet_s - (self._watch.voter_wait_s - waited) > STALL_S:
                raise StalledError(f"no commit for {quiet_s:.0f} s")
            await asyncio.sleep(POLL_S)

    def _has_plan(self) -> bool:
        status = self._watch.status()
        return status is not None and status.plan is not None

    def _is_steady(self) -> bool:
        status = self._watch.status()
        return (
            status is not None
            and status.phase is ArbiterPhase.RUNNING
            and self._campaign.has_full_plan()
            and status.progress.committed >= self._fleet.plan().target
        )

    # ------------------------------------------------------------ agents

    async def _refill(self) -> None:
        """Start a new agent for each that has ended or will not come back, unless the job is to end
        and lets its agents go."""
        while True:
            await asyncio.sleep(POLL_S)
            if self._fleet.operator.goal.suspended or self._steps_left() <= 0:
                continue
            for agent in sorted((self._fleet.exits.keys() | self._doomed) - self._replaced):
                self._replaced.add(agent)
                self._newcomers += 1
                await self._fleet.add({f"new-{self._newcomers}": self._fleet.pods[agent].zone})

    # ------------------------------------------------------------ figures

    def _describe(
        self,
        error: Exception | None,
        acted: list[tuple[Injected, int]],
    ) -> Round:
        watch, before, began = self._watch, self._before, self._before.began
        watch.look()
        times = [at for at in watch.commits if at >= began]
        first = max((at for at in watch.commits if at < began), default=began)
        gaps = [later - at for at, later in pairwise([first, *times, time.monotonic()])]
        effects = Counter[str]()
        for fault, times_acted in acted:
            effects[fault.kind] += times_acted
        restored, repeated = self._restored(began), watch.repeated_after(before.attempt)
        recovery = self._judge(restored=restored, repeated=repeated, goes_on=error is None)
        unexplained = watch.unexplained - before.unexplained
        failures = [*watch.differences[:5]]
        if error is not None:
            failures.append(f"{type(error).__name__}: {error}")
        elif recovery.succeeded < recovery.alive:
            lost = ", ".join(loss.agent for loss in self._losses)
            failures.append(f"{repeated} steps repeated, though a copy of all lived without {lost}")
        elif restored and self._do_all_live():
            failures.append("restored, though nobody was lost, and all sessions came back in time")
        elif repeated and not restored:
            failures.append(f"{repeated} committed steps repeated after a suspension")
        if unexplained:
            failures.append("no commit for long, and the job has not said why")
        return Round(
            grid=str(self._grid),
            kinds="+".join(fault.kind for fault, count in acted if count),
            did="; ".join(fault.text + ("" if count else IN_VAIN) for fault, count in acted),
            seconds=round(time.monotonic() - began, 2),
            pause_s=round(max(gaps), 3),
            voter_wait_s=round(watch.voter_wait_s - before.voter_wait_s, 2),
            idle="+".join(fault.kind for fault, count in acted if not count),
            effects=dict(sorted(effects.items())),
            restored=restored,
            unequal=bool(watch.differences),
            stalled=isinstance(error, StalledError),
            lost=error is not None and not isinstance(error, StalledError),
            failure="\n".join(failures),
            copies_alive=recovery.alive,
            recovered=recovery.succeeded,
            repeated=repeated,
            unexplained=unexplained,
        )

    def _do_all_live(self) -> bool:
        """Whether sessions were refused, and nothing was done that ends an agent, or that lasts for
        longer than the arbiter waits."""
        injector = self._injector
        if injector is None or injector.doomed or injector.going:
            return False
        return 0.0 < max(injector.refused.values(), default=0.0) < TIMING.voter_wait_s

    def _restored(self, began: float) -> bool:
        """Whether the arbiter has restored since, other than after a suspension."""
        return any(
            record.reason is EventReason.RESTORING
            and record.facts[EventFact.CAUSE] != RestoreCause.RESUMED
            for at, record in self._fleet.operator.records
            if at > began
        )

    def _judge(self, *, restored: bool, repeated: int, goes_on: bool) -> Recovery:
        """Judge the losses of this round. A new attempt is a restore, whatever the arbiter says:
        no round with losses suspends the job."""
        refused = self._injector.refused if self._injector is not None else {}
        gone = {*self._before.exits, *self._doomed, *self._going, *refused}
        restored = restored or self._watch.attempt > self._before.attempt
        return losses.judge(
            self._losses, gone, restored=restored, repeated=repeated, goes_on=goes_on
        )


async def soak(
    folder: Path,
    forkserver: ForkServerProcess,
    reference: Reference,
    grid: Grid,
    chance: random.Random,
    sample: Sample,
) -> AsyncIterator[Round]:
    """The rounds of one job, whose files are in ``folder``."""
    (folder / VOLUME).mkdir()
    (folder / "checkpoints").symlink_to(folder / VOLUME)
    spec = grid.job(folder, reference.steps, EVERY_STEPS)
    async with LocalFleet(
        spec,
        folder / "fleet",
        timing=TIMING,
        forkserver=forkserver,
        profiled=False,
        logs_events=False,
        logs_states=True,
        requires_effects=False,  # a round says which of its faults have had none
    ) as fleet:
        job = SoakedJob(fleet, grid, reference, chance)
        async for done in job.rounds(sample):
            if done.failure:
                (folder / "record.txt").write_text(f"{done}\n{done.failure}\n{fleet.record()}")
            yield done
