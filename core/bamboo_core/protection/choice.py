"""The cost model: what each mode of redundancy costs and saves, and which one is the cheapest.

One pure function, :func:`choose`. The unit of cost is seconds of training lost in an hour: by the
overhead of undisturbed steps, by pauses, by slower steps while seats are empty, and by work that a
restore repeats. Every term is the expectation of something that the planner does, over the number
of empty seats of the grid that the job asks for (:func:`bamboo_core.protection.hazard.chances`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, isfinite
from typing import Protocol

from bamboo_core.api.spec import RedundancyMode
from bamboo_core.model.counts import counted
from bamboo_core.placement import capacity
from bamboo_core.protection import hazard
from bamboo_core.scheduling import device_memory
from bamboo_core.scheduling.device_memory import STATES, Need, Sizes

NONE, REPLICA, EAGER = RedundancyMode.NONE, RedundancyMode.REPLICA, RedundancyMode.EAGER
MODES = (NONE, REPLICA, EAGER)
"""From the least protection to the most."""

_HOUR_S = 3600.0
_NOTHING = 0.99  # of an hour that is lost
_MARGIN_S = 18.0  # in an hour (0.5 %): a smaller gain is not worth a change of mode
_RARE = 1e-3  # a number of empty seats that is less likely counts as the next one


class Steps(Protocol):
    """How long steps are while seats are empty."""

    def slower(self, mode: RedundancyMode, pipelines: int, empty: int) -> float:
        """The step of a grid with so many pipelines, of whose seats so many are empty (less than
        its stages), over the undisturbed step of the whole grid. Not less with more of them."""

    def prepare(self, is_wanted: Callable[[], bool]) -> None:
        """Compute what may be asked, as long as it is wanted, so that nobody waits for it."""


@dataclass(frozen=True)
class Recovery:
    """How a step goes on without one agent."""

    degraded: float  # a step with an empty seat over an undisturbed one
    redone_s: float  # time that the lost work costs, on average


@dataclass(frozen=True)
class Facts:
    """All inputs. Sizes are those of the largest stage and one micro-batch."""

    hazard_per_agent_hour: float
    pipelines: int  # D that the job asks for
    stages: int  # P
    microbatches: int  # M of one pipeline in a step
    step_s: float  # undisturbed: estimated without redundancy, or measured in the mode in force
    forward_s: float
    backward_s: float
    idle_s: float  # free bubble time of an agent in a step
    ahead_s: float  # of it, what the lane fills with forwards of the next stage
    delay_s: float  # by which a step in Eager is longer: less room for what is in flight
    copying_s: float  # by which the way of gradients to copies makes a step longer
    bare: Recovery | None  # without replicas; None: a loss is fatal, since D is 1
    copied: Recovery | None  # with replicas; None: there are none, since P is 1
    eager: Recovery | None  # with replicas that have computed ahead on the device; None: as copied
    parameter_bytes: int
    activation_bytes: int  # kept from a forward to its backward
    boundary_bytes: int  # the output
    layer_bytes: int  # parameters of the largest layer
    device_bytes: tuple[int, ...]  # of the fullest agent in an undisturbed step, for each of MODES
    steps: Steps  # with empty seats
    sums: int = 2  # of gradients that an agent holds at once
    tight_s: float = 0.0  # by which a step in Replica is longer: less room for what is in flight
    memory_bytes: int = 0  # of the smallest device; 0: unknown
    host_memory_bytes: int = 0  # spec.redundancy.hostMemory, of one agent
    bytes_per_s: float = 1.25e9  # of the network between two agents
    host_bytes_per_s: float = 12e9  # between a device and host memory
    stop_s: float = 1.0  # from a loss until the survivors compute again
    restart_s: float = 60.0  # to restore a checkpoint, without what is repeated
    checkpoint_s: float = inf  # between two checkpoints; inf: there is none before the end
    refill_s: float = 180.0  # for how long a seat stays empty, on average
    empty_share: float | None = None  # of seats; None: as hazard and refill_s say
    empty_together: float = 0.0  # correlation of two seats' being empty
    is_clustered: bool = False  # neighbours, and so a stage and its copy, share a zone
    current: RedundancyMode | None = None  # in force; None: nothing is chosen yet
    measured: tuple[str, ...] = ()  # names of these fields whose values were measured

    def recovery(self, mode: RedundancyMode) -> Recovery | None:
        """After a loss in this mode; None: it is fatal, or there is no such mode."""
        return {NONE: self.bare, REPLICA: self.copied, EAGER: self.eager}[mode]

    @property
    def agents(self) -> int:
        """N."""
        return self.pipelines * self.stages

    @property
    def share(self) -> float:
        """The share of seats that are empty, on average over time."""
        if self.empty_share is not None:
            return self.empty_share
        return hazard.empty_share(_hazard(self), self.refill_s)

    @property
    def sizes(self) -> Sizes:
        """The sizes on which the need of memory depends."""
        return Sizes(
            self.stages,
            self.microbatches,
            self.parameter_bytes,
            self.layer_bytes,
            self.activation_bytes,
            self.boundary_bytes,
            self.sums,
        )


@dataclass(frozen=True)
class Estimate:
    """The cost of one mode."""

    mode: RedundancyMode
    excluded: str  # why it cannot be taken, or why not even None fits; empty: it fits
    overhead: float  # an undisturbed step over one without redundancy
    step: float  # expected, with empty seats as often as they are, over the same one
    pause_s: float  # expected for a loss, restores included
    fatal_per_hour: float  # losses of a layer's last copy
    lost_s: float  # in an hour, by everything together; inf: there is no such mode
    device_bytes: int  # of the fullest agent
    host_bytes: int
    replica_host_bytes: int = 0  # of them, replicas; 0: these are on the device
    ahead_host_bytes: int = 0  # of them, what is computed ahead; 0: it is on the device
    ahead: float = 0.0  # share of forwards that are done ahead and still held at a loss
    redone_s: float = 0.0  # time for what is computed again after a loss

    @property
    def name(self) -> str:
        return self.mode.value


@dataclass(frozen=True)
class Verdict:
    """The answer, with all that led to it."""

    mode: RedundancyMode
    reason: str  # one sentence
    facts: Facts
    estimates: tuple[Estimate, ...]  # one of each of MODES, in their order

    def of(self, mode: RedundancyMode) -> Estimate:
        """The estimate of a mode."""
        return next(e for e in self.estimates if e.mode is mode)


def choose(facts: Facts) -> Verdict:
    """The cheapest mode that fits; of equal ones the one with less redundancy. None if none fits.

    A mode in force stays unless another one saves more than 18 s an hour (0.5 %), so that noise in
    the measured hazard changes no plan. Eager begins only if it saves as much more, for its memory.
    Deterministic. ValueError for numbers that make no job.
    """
    _check(facts)
    estimates = tuple(_estimate(facts, mode) for mode in MODES)
    able = [e for e in estimates if not e.excluded]
    best = min(
        able or estimates[:1], key=lambda e: (e.lost_s + _margin_s(e, facts), MODES.index(e.mode))
    )
    return Verdict(best.mode, _reason(best, estimates, facts), facts, estimates)


def _check(facts: Facts) -> None:
    for name in ("pipelines", "stages", "microbatches", "step_s", "bytes_per_s", "refill_s"):
        value = getattr(facts, name)
        if not value > 0:
            raise ValueError(f"{name} is {value}; it must be positive")
    if not 0 <= facts.hazard_per_agent_hour < inf:
        raise ValueError(
            f"hazard_per_agent_hour is {facts.hazard_per_agent_hour}; it must be a number of at"
            " least 0"
        )
    if not 0 <= facts.share < 1:
        raise ValueError(f"empty_share is {facts.share}; it must be at least 0 and less than 1")


def _margin_s(estimate: Estimate, facts: Facts) -> float:
    """The time that the mode has to save in an hour before it is taken."""
    is_change = facts.current is not None and estimate.mode is not facts.current
    begins_eager = estimate.mode is EAGER is not facts.current
    return _MARGIN_S * (is_change + begins_eager)


def _estimate(facts: Facts, mode: RedundancyMode) -> Estimate:
    memory = device_memory.need(
        facts.sizes,
        mode,
        memory_bytes=facts.memory_bytes,
        host_memory_bytes=facts.host_memory_bytes,
    )
    excluded = _why_not(facts, mode)
    ahead = _ahead(facts, memory) if mode is EAGER else 0.0
    recovery = facts.recovery(mode)
    overhead = _overhead(facts, mode, memory)
    device_bytes = facts.device_bytes[MODES.index(mode)]
    sizes = device_bytes, memory.host_bytes, memory.replica_bytes, memory.ahead_bytes
    if recovery is None and mode is not NONE:
        return Estimate(mode, excluded, overhead, inf, inf, inf, inf, *sizes)
    redone_s = _redone_s(facts, recovery, mode, memory) if recovery is not None else 0.0
    hour = _hour(facts, mode, overhead, redone_s)
    return Estimate(
        mode,
        excluded,
        overhead,
        hour.step,
        hour.pause_s,
        hour.fatal,
        _HOUR_S * (1 - hour.progress),
        *sizes,
        ahead=ahead,
        redone_s=redone_s,
    )


# ---------------------------------------------------------------- losses and empty seats


@dataclass(frozen=True)
class _Hour:
    """Expectations over the number of empty seats."""

    progress: float  # over that of undisturbed steps without redundancy and losses
    step: float  # as in Estimate; inf: there are never enough agents
    pause_s: float  # of a loss
    fatal: float  # losses in an hour


def _hazard(facts: Facts) -> float:
    """Where nothing was seen of empty seats, at most one loss of an agent in the time that replaces
    it: beyond, no grid can be kept, and the comparison of modes has no meaning."""
    if facts.empty_share is not None:
        return facts.hazard_per_agent_hour
    return min(facts.hazard_per_agent_hour, _HOUR_S / facts.refill_s)


def _numbers(facts: Facts) -> list[tuple[int, float]]:
    """How many seats are empty, and the chance of it."""
    found: list[tuple[int, float]] = []
    rare = 0.0
    for empty, chance in enumerate(hazard.chances(facts.agents, facts.share, facts.empty_together)):
        rare += chance
        if rare >= _RARE:
            found.append((empty, rare))
            rare = 0.0
    found = found or [(round(facts.agents * facts.share), 0.0)]
    found[-1] = found[-1][0], found[-1][1] + rare
    return found


def _losses_per_hour(facts: Facts) -> float:
    left = sum(chance * (facts.agents - empty) for empty, chance in _numbers(facts))
    return left * _hazard(facts)


def _hour(facts: Facts, mode: RedundancyMode, overhead: float, redone_s: float) -> _Hour:
    """A loss interrupts a step, and a pause ends with its work done again, or with a restore. While
    too few agents are left for any pipeline, nothing goes on."""
    progress = speeds = lost = fatal = paused = 0.0
    survived_s = min(facts.stop_s + redone_s, _restore_s(facts, facts.agents))
    for empty, chance in _numbers(facts):
        step = _step(facts, mode, empty) + overhead - 1
        if not isfinite(step):
            continue
        losses = (facts.agents - empty) * _hazard(facts)
        ends = _fatal_chance(facts, mode, empty)
        left = facts.agents - empty - 1 if mode.keeps_copies else facts.stages
        pause_s = (1 - ends) * survived_s + ends * _restore_s(facts, left)
        speeds += chance / step
        progress += chance / step / (1 + losses * pause_s / _HOUR_S)
        lost += chance * losses
        fatal += chance * losses * ends
        paused += chance * losses * pause_s
    pause_s = paused / lost if lost else survived_s
    return _Hour(progress, 1 / speeds if speeds else inf, pause_s, fatal)


def _step(facts: Facts, mode: RedundancyMode, empty: int) -> float:
    """A step with so many empty seats over an undisturbed one of the same mode with none; inf: too
    few agents are left.

    The grid has as many pipelines as seat all agents. Whether all of them compute is one of the
    ways to share lost work.
    """
    stages, agents = facts.stages, facts.agents - empty
    if agents < (capacity.fewest(stages=stages) if mode.keeps_copies else stages):
        return inf  # without copies, the loss before has ended the attempt
    used = capacity.pipelines_for(agents, stages=stages, wanted=facts.pipelines)
    return facts.steps.slower(mode, used, max(0, used * stages - agents))


def _fatal_chance(facts: Facts, mode: RedundancyMode, empty: int) -> float:
    """Chance that a loss takes the last copy of a layer, if so many seats are empty.

    All seats are empty that hold the same stage: D of them, or 2 D with replicas, where an agent
    holds two stages. Any seats may be empty. Agents fail independently here; that neighbours stand
    in different zones is what makes this fair (bamboo_core.placement). With adjacency Cluster they
    do not, and the reason says so: how often a zone loses several agents at once is not known.
    """
    stages, agents = facts.stages, facts.agents - empty
    used = capacity.pipelines_for(agents, stages=stages, wanted=facts.pipelines)
    held = 2 if mode.keeps_copies else 1
    others = used * held - 1
    chance = hazard.last_copy_chance(used * stages, max(0, used * stages - agents), others)
    return min(1.0, held * chance)


def _restore_s(facts: Facts, agents: int) -> float:
    """The cost of a restore with so many agents left: half the interval between checkpoints is
    repeated on average. It begins with a whole pipeline; until then, empty seats are taken one by
    one, each after ``refill_s`` on average."""
    empty = facts.agents - agents
    waits = (facts.refill_s / (empty - i) for i in range(facts.stages - agents))
    return facts.restart_s + facts.stop_s + facts.checkpoint_s / 2 + sum(waits)


# ---------------------------------------------------------------- overhead


def _overhead(facts: Facts, mode: RedundancyMode, memory: Need) -> float:
    """The length of an undisturbed step over that of one without redundancy.

    Replica: the holder of the copy is one more receiver of the stage's reduced gradient (commit A
    of the step graph). If it leaves less room for activations in flight, the schedule is longer, in
    Eager by more. No slice is begun that would delay an input. The update of a copy in host memory
    moves it to the device and back; in Eager, weights stay there.
    """
    if mode is NONE:
        return 1.0
    extra_s = facts.copying_s + (facts.delay_s if mode is EAGER else facts.tight_s)
    if memory.replica_bytes:
        moved = STATES - 1 if mode is EAGER else STATES
        extra_s += 2 * moved * facts.parameter_bytes / facts.host_bytes_per_s
    return 1 + extra_s / facts.step_s


def _redone_s(facts: Facts, recovery: Recovery, mode: RedundancyMode, memory: Need) -> float:
    """Time for tasks that are computed again. Forwards ahead save less in Eager if their
    activations must come back from host memory. The backward is always left to do (lazy BRC)."""
    if mode is not EAGER or not memory.ahead_bytes or facts.copied is None or not facts.forward_s:
        return recovery.redone_s
    saved_s = max(0.0, facts.copied.redone_s - recovery.redone_s)
    back_s = facts.activation_bytes / facts.host_bytes_per_s
    return facts.copied.redone_s - saved_s * (1 - back_s / facts.forward_s)


def _ahead(facts: Facts, memory: Need) -> float:
    """Share of the forwards that an agent has done ahead of a loss: as far as time and room
    reach."""
    work_s = facts.microbatches * facts.forward_s
    by_time = facts.ahead_s / work_s if work_s else 1.0
    return max(0.0, min(1.0, by_time, memory.ahead / facts.microbatches))


# ---------------------------------------------------------------- memory


def _why_not(facts: Facts, mode: RedundancyMode) -> str:
    """Why the mode does not fit; empty: it does."""
    if mode is not NONE and facts.stages == 1:
        return "there is no next stage: spec.pipelines.stages is 1"
    return device_memory.shortage(
        facts.sizes,
        mode,
        memory_bytes=facts.memory_bytes,
        host_memory_bytes=facts.host_memory_bytes,
    )


# ---------------------------------------------------------------- words


def _reason(best: Estimate, estimates: tuple[Estimate, ...], facts: Facts) -> str:
    losses = _losses_per_hour(facts)
    others = [_cost(e) for e in estimates if e.mode is not best.mode and not e.excluded]
    cannot = [
        f"{e.mode.value} cannot be used ({e.excluded})"
        for e in estimates
        if e.excluded and e.mode is not best.mode
    ]
    text = (
        f"with {losses:.3g} losses an hour among {counted(facts.agents, 'agent')}, of whose seats"
        f" {100 * facts.share:.2g} % are empty, for {_seconds(facts.refill_s)} each time,"
        f" {_cost(best, 'costs ', ' of training an hour')}"
    )
    if others:
        text += f", {' and '.join(others)}"
    if best.replica_host_bytes:
        text += "; replicas are in host memory, since the device is too small for them"
    if best.ahead_host_bytes:
        text += "; what is computed ahead goes to host memory, since the device is short"
    if facts.is_clustered and best.mode.keeps_copies:
        text += (
            "; not counted: with spec.placement.adjacency Cluster a stage and its copy share a"
            " zone, which may lose both at once"
        )
    if cannot:
        text += f"; {', '.join(cannot)}"
    if best.excluded:
        text += f"; {device_memory.not_even_none(best.excluded)}"
    cheapest = min((e for e in estimates if not e.excluded), key=lambda e: e.lost_s, default=best)
    if cheapest.lost_s < best.lost_s:
        least_s = _margin_s(cheapest, facts) - _margin_s(best, facts)
        text += f"; a change would save less than {least_s:g} s"
    return text


def _cost(estimate: Estimate, verb: str = "", unit: str = "") -> str:
    """The cost of a mode in an hour, in words."""
    name, lost_s = estimate.mode.value, estimate.lost_s
    if lost_s >= _NOTHING * _HOUR_S:
        return f"the job makes hardly any progress in {name}"
    if lost_s < 0:  # fewer pipelines are faster over this network
        return f"{name} gains {_seconds(-lost_s)}{unit}"
    return f"{name} {verb}{_seconds(lost_s)}{unit}"


def _seconds(value: float) -> str:
    return f"{value:.0f} s" if value >= 10 else f"{value:.2g} s"
