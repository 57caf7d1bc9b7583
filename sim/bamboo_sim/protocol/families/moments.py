"""Families that wait for one moment of a run: a word is under way, a step is committed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import chain, count

from bamboo_core.arbiter_state.events import Received
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.program import Op
from bamboo_core.placement.plan import layers_of
from bamboo_core.protocol.messages import (
    AgentReport,
    BadCheckpoint,
    Directive,
    Finished,
    Left,
    Listed,
    Sealed,
    Stop,
)
from bamboo_sim.protocol.histories.branching import (
    POLICIES,
    WHOLE,
    At,
    Histories,
    Part,
    inject,
    prefixes,
    run_on,
    snapshot,
)
from bamboo_sim.protocol.histories.history import History
from bamboo_sim.protocol.parts.messages import Put
from bamboo_sim.protocol.parts.network import OPERATOR, PLANNER, STORE
from bamboo_sim.protocol.running.simulation import Simulation
from bamboo_sim.protocol.world.state import World

_MOST = 250  # events until the moment
_FOR_EVER = 1_000_000  # events: more than a history has
_LONG_S = 1e6


def wait_until(at: At, is_there: Callable[[World], object]) -> At | None:
    """A copy that has run until then; None if the moment does not come."""
    history, world = snapshot(at)
    for gap in range(_MOST):
        if is_there(world):
            return history.then(gap, ()), world
        if not run_on((history, world), 1):
            return None
    return None


def who_is_told(world: World) -> AgentId | None:
    """An agent to which a directive is under way."""
    messages = world.network.messages
    return next((to for _, to, x in messages if isinstance(x, Directive)), None)


def who_says(kind: type) -> Callable[[World], AgentId | None]:
    """The agent whose message of that kind is under way to the leader."""

    def find(world: World) -> AgentId | None:
        for source, target, content in world.network.messages:
            is_word = isinstance(content, Received) and isinstance(content.message, kind)
            if is_word and target == world.operators.leader and source in world.nodes:
                return source
        return None

    return find


def _delayed(at: At, name: AgentId, delay: int) -> At:
    """Let what the agent has said come so many events later, on a replaced stream."""
    return inject(at, 0, ("reconnect", name, 9, delay))


def farewells(base: History, part: Part = WHOLE) -> Histories:
    """The last word of a leaver comes when a later plan needs it again."""
    rng, job = random.Random(base.seed), base.job
    for n, at in enumerate(prefixes(base, part), part.turn):
        names = sorted(at[1].nodes)
        leaves = inject(at, 0, ("notice", names[n % len(names)], 30.0))
        for spare in job.agents[len(job.at_start) :]:
            leaves = inject(leaves, 0, ("start", spare))
        moment = wait_until(leaves, who_says(Left))
        name = None if moment is None else who_says(Left)(moment[1])
        if moment is None or name is None:
            continue
        gap = moment[1].events - leaves[1].events
        others = sorted(moment[1].nodes.keys() - {name})
        for number, other in enumerate(others):
            before = inject(leaves, max(0, gap - rng.choice((2, 8, 20, 40))), ("kill", other, 1))
            before = inject(before, 0, ("kill", others[number - 1], 1))
            stopped = wait_until(before, partial(_is_stopped, name=name))
            if stopped is None:
                continue
            for delay in (20, 50, 80, 120):
                yield _delayed(stopped, name, delay)


def _is_stopped(world: World, name: AgentId) -> bool:
    """The agent's Left is under way, but it has heard the STOP of the next plan already."""
    node = world.nodes.get(name)
    for source, target, content in world.network.messages:
        if source == name and target == world.operators.leader and isinstance(content, Received):
            word = content.message
            if isinstance(word, Left) and node is not None:
                return node.supervisor.fence > word.fence
    return False


def finishes(base: History, part: Part = WHOLE) -> Histories:
    """An agent has finished; then another one dies. What the first one had said comes when only it
    has not finished the next plan, since its worker stands still."""
    for n, at in enumerate(prefixes(base, part), part.turn):
        names = sorted(at[1].nodes)
        slow = inject(at, 0, ("slow down", names[n % len(names)]))
        moment = wait_until(slow, who_says(Finished))
        name = None if moment is None else who_says(Finished)(moment[1])
        if moment is None or name is None:
            continue
        late = _delayed(moment, name, _FOR_EVER)
        (stream,) = late[1].network.frozen
        for other in sorted(late[1].nodes.keys() - {name}):
            killed = inject(late, 0, ("kill", other, 1))
            reported = wait_until(killed, partial(_has_reported, name=name))
            if reported is None:
                continue
            fence = reported[1].arbiter.fence
            still = inject(reported, 0, ("stand still", "worker", name, 40.0))
            last = wait_until(still, partial(_is_last, name=name, fence=fence))
            if last is not None:
                yield inject(last, 0, ("thaw", stream))


def _has_reported(world: World, name: AgentId | None) -> bool:
    """The leader has heard the agent's report."""
    return name in world.arbiter.state.reports()


def _is_last(world: World, name: AgentId, fence: Fence) -> bool:
    """All agents of the plan have finished but this one."""
    plan, finished = world.plan, getattr(world.arbiter.state.phase, "finished", None)
    if plan is None or finished is None or plan.fence != fence:
        return False
    return bool({*plan.live} - finished == {name})


def _holders(world: World, layer: int) -> list[AgentId]:
    """The agents that hold the layer by plan."""
    wants = world.plan.wants if world.plan is not None else {}
    return [a for a, ranges in sorted(wants.items()) if layer in layers_of(ranges)]


def reports(base: History, part: Part = WHOLE) -> Histories:
    """A report comes after a layer was lost, a new attempt has begun, and so has the leader."""
    rng, job = random.Random(base.seed), base.job
    for n, at in enumerate(prefixes(base, part), part.turn):
        found = at
        for name in _holders(at[1], n % job.num_layers):
            found = inject(found, 0, ("kill", name, 1))
        for i in range(len(job.at_start)):
            found = inject(found, 0, ("start", AgentId(f"b{i:02d}")))
        moment = wait_until(found, who_says(AgentReport))
        if moment is None:
            continue
        teller = who_says(AgentReport)(moment[1])
        assert teller is not None
        for delay in range(30, 200, 13):
            late = _delayed(moment, teller, delay)
            begun = wait_until(late, lambda world: world.operators.durable.attempt > 0)
            if begun is None:
                continue
            broken = inject(begun, rng.randrange(30), ("defect",))
            yield snapshot(broken)
            term = broken[1].arbiter.fence.term
            stopped = wait_until(broken, partial(_is_asked, name=teller, term=term))
            if stopped is not None:
                yield inject(stopped, 0, ("stand still", "supervisor", teller, 2.0))


def echoes(base: History, part: Part = WHOLE) -> Histories:
    """After a loss, an agent's session breaks while its report is under way, so it is asked again.
    It hears that late, when the others have begun the plan."""
    base = replace(base, policy="slow-control")
    for n, at in enumerate(prefixes(base, part), part.turn):
        names = sorted(at[1].nodes)
        name, *others = names[n % 2 :] + names[: n % 2]
        found = inject(at, 0, ("kill", others[n % len(others)], n % 3))
        moment = wait_until(found, partial(_says_report, name=name))
        if moment is None:
            continue
        for kept in (7, 8, 9):  # each gives another order of events
            broken = inject(moment, 0, ("reconnect", name, kept))
            again = wait_until(broken, partial(_hears_stop, name=name))
            if again is not None:
                yield again


def _says_report(world: World, name: AgentId) -> bool:
    return any(
        source == name and isinstance(x, Received) and isinstance(x.message, AgentReport)
        for source, _, x in world.network.messages
    )


def _hears_stop(world: World, name: AgentId) -> bool:
    """A STOP that the agent has obeyed already is under way to it."""
    node = world.nodes.get(name)
    return node is not None and any(
        target == name and isinstance(x, Stop) and x.fence == node.executor.fence
        for _, target, x in world.network.messages
    )


def lists(base: History, part: Part = WHOLE) -> Histories:
    """An agent's list of the checkpoints is under way for a whole attempt. Nobody tells of a newer
    checkpoint, since who has sealed it dies, and a layer is lost with it. The old list comes while
    the storage makes others wait for a new one."""
    job = base.job
    for n, at in enumerate(prefixes(base, part), part.turn):
        killed = _lose_layer(at, n % job.num_layers, "b")
        moment = wait_until(killed, who_says(Listed))
        teller = None if moment is None else who_says(Listed)(moment[1])
        if moment is None or teller is None:
            continue
        late = _delayed(moment, teller, _FOR_EVER)
        streams = late[1].network.frozen
        sealed = wait_until(late, partial(_seals_in, attempt=1))
        sealer = None if sealed is None else who_says(Sealed)(sealed[1])
        if sealed is None or sealer in (None, teller):
            continue
        layers = [x for x in range(job.num_layers) if teller not in _holders(sealed[1], x)]
        found = inject(sealed, 0, ("stand still", "storage", OPERATOR, 40.0))
        found = inject(found, 0, ("kill", sealer, 1))
        for layer in layers[:1]:
            asked = wait_until(_lose_layer(found, layer, "c"), _is_list_wanted)
            if asked is not None:
                (stream,) = streams
                yield inject(asked, 0, ("thaw", stream))


def _lose_layer(at: At, layer: int, prefix: str) -> At:
    """All holders of the layer die, and as many agents start as are missing."""
    found = at
    for name in _holders(at[1], layer):
        found = inject(found, 0, ("kill", name, 1))
    for i in range(len(at[0].job.at_start) - len(found[1].nodes)):
        found = inject(found, 0, ("start", AgentId(f"{prefix}{i:02d}")))
    return found


def _seals_in(world: World, attempt: int) -> bool:
    """A seal of that attempt is under way to the leader."""
    return world.operators.durable.attempt == attempt and who_says(Sealed)(world) is not None


def _is_list_wanted(world: World) -> bool:
    """The leader waits for a list of the checkpoints."""
    listing = world.arbiter.state.listing
    return listing.since is not None and not listing.is_here


def _is_asked(world: World, name: AgentId, term: int) -> bool:
    """The agent's worker is to report to the leader of that term."""
    node = world.nodes.get(name)
    if node is None or node.supervisor.fence.term != term:
        return False
    return node.supervisor._report_due_at is not None


def tears(base: History, part: Part = WHOLE) -> Histories:
    """A checkpoint is found torn, or sealed, and the session that should say so breaks."""
    rng, job = random.Random(base.seed), base.job
    for n, at in enumerate(prefixes(base, part), part.turn):
        if not at[1].sealed:
            continue
        found = at
        for name in _holders(at[1], n % job.num_layers):
            found = inject(found, 0, ("kill", name, n % 3))
        for i in range(len(job.at_start)):
            found = inject(found, 0, ("start", AgentId(f"b{i:02d}")))
        torn = inject(wait_until(found, _is_loading) or found, 0, ("corrupt",))
        for start, kind in ((torn, BadCheckpoint), (found, Sealed)):
            moment = wait_until(start, who_says(kind))
            if moment is not None:
                one = who_says(kind)(moment[1])
                yield inject(moment, 0, ("reconnect", one, 0))
                yield inject(moment, 0, ("restart operator", True))
        yield _unheard(torn, BadCheckpoint)
        yield from _seals_after_report(at, rng)


def _unheard(at: At, kind: type) -> At:
    """The session of each agent that says such a word breaks, so all of them are lost."""
    found = at
    for _ in at[1].nodes:
        moment = wait_until(found, who_says(kind))
        if moment is None:
            break
        found = inject(moment, 0, ("reconnect", who_says(kind)(moment[1]), 0))
    return found


def _is_loading(world: World) -> bool:
    """An agent reads a checkpoint."""
    return any(x is not None for node in world.nodes.values() for x in node.worker.reads)


def _seals_after_report(at: At, rng: random.Random) -> Histories:
    """The storage is slow, so an agent seals a checkpoint after its report. It hears of the next
    plan before its session breaks, and before the leader hears of the seal."""
    moment = wait_until(inject(at, 0, ("slow down", rng.choice(sorted(at[1].nodes)))), _sealer)
    name = None if moment is None else _sealer(moment[1])
    if moment is None or name is None:
        return
    slow = inject(moment, 0, ("stand still", "storage", OPERATOR, _LONG_S))
    for other in sorted(moment[1].nodes.keys() - {name}):
        killed = inject(slow, 0, ("kill", other, 0))
        reported = wait_until(killed, partial(_has_reported, name=name))
        if reported is None:
            continue
        silent = inject(reported, 0, ("stand still", "machine", PLANNER, _LONG_S))
        silent = inject(silent, 0, ("stand still", "supervisor", name, _LONG_S))
        sealed = wait_until(
            inject(silent, 0, ("go on", "storage", OPERATOR)),
            partial(_has_unheard, name=name, kind=Sealed),
        )
        if sealed is None:
            continue
        planned = wait_until(
            inject(sealed, 0, ("go on", "machine", PLANNER)),
            partial(_has_unheard, name=name, kind=Directive),
        )
        if planned is not None:
            heard = inject(planned, 0, ("go on", "supervisor", name))
            yield inject(heard, 0, ("reconnect", name, 0))


def _sealer(world: World) -> AgentId | None:
    """An agent that has to write a manifest."""
    names = (a for a, x in sorted(world.nodes.items()) if any(w[2] < 0 for w in x.worker.writes))
    return next(names, None)


def _has_unheard(world: World, name: AgentId, kind: type) -> bool:
    """Such a message waits for the supervisor, which stands still."""
    node = world.nodes.get(name)
    events = (node.unheard if node is not None else None) or ()
    return any(isinstance(getattr(e, "message", None), kind) for e in events)


def stops(base: History, part: Part = WHOLE) -> Histories:
    """A supervisor stands still while its worker answers a STOP; or the leader's shell breaks down
    while a plan is being written."""
    rng = random.Random(base.seed)

    def asked(world: World) -> AgentId | None:
        due = (a for a, x in sorted(world.nodes.items()) if x.supervisor._report_due_at is not None)
        return next(due, None)

    def is_writing(world: World) -> bool:
        found = (m[2] for m in world.network.messages if isinstance(m[2], Put))
        return any(put.order.durable.plan > world.operators.durable.plan for put in found)

    for n, at in enumerate(prefixes(base, part, begun=False), part.turn):
        names = sorted(at[1].nodes)
        found = inject(at, 0, ("kill", rng.choice(names), n % 3)) if at[1].plan else at
        moment = wait_until(found, asked)
        if moment is not None:
            one = asked(moment[1])
            paused = inject(moment, 0, ("stand still", "supervisor", one, rng.choice((0.5, 4.0))))
            yield snapshot(paused)
            yield inject(paused, 0, ("stand still", "machine", OPERATOR, 4.0))
        moment = wait_until(found, is_writing)
        if moment is not None:
            yield inject(moment, 0, ("defect",))
            broken = inject(moment, 0, ("stand still", "machine", STORE, 4.0))
            yield inject(broken, 0, ("defect",))
            killed = inject(broken, 0, ("kill", rng.choice(sorted(broken[1].nodes)), 1))
            yield inject(killed, 0, ("defect",))


def sources(base: History, part: Part = WHOLE) -> Histories:
    """Newcomers learn while old agents die, until others receive something from a learner; then it
    dies. This is rare, so the search begins with seeds that are known to lead there."""
    job, first = base.job, part.phase + part.turn
    for seed in chain(_SEEDS[job.eager], count(base.seed * 1000 + first)):
        rng = random.Random(seed)
        policy = POLICIES[seed % len(POLICIES)]
        found = History(job, seed, policy), Simulation(job, seed, policy)
        gaps = (rng.randrange(30, 150), rng.randrange(40), rng.randrange(40))
        for gap, spare in zip(gaps, job.agents[len(job.at_start) :], strict=False):
            found = inject(found, gap, ("start", spare))
        found = inject(found, rng.randrange(10, 140), ("kill", rng.choice(job.at_start), 1))
        for _ in range(2):
            moment = wait_until(found, _source)
            live = sorted(found[1].nodes)
            if moment is not None or len(live) < job.stages:
                break
            found = inject(found, rng.randrange(10, 100), ("kill", rng.choice(live), 1))
        if moment is None:
            continue
        for gap in (0, 2, 5, 9, 15, 25):
            yield inject(moment, gap, ("kill", _source(moment[1]), 1))


_SEEDS = {False: (40, 1490), True: (726, 354, 396)}
"""By whether the job is in mode Eager."""


def _source(world: World) -> AgentId | None:
    """A learner of the newest plan from which others receive something."""
    in_force = world.arbiter.state.in_force
    if in_force is None or in_force.plan.fence != world.operators.durable.plan:
        return None
    for directive in in_force.directives.values():
        for instruction in directive.resume:
            if instruction.op is Op.RECV and instruction.peer in in_force.plan.learners:
                return instruction.peer
    return None
