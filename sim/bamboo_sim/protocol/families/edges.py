"""Families of histories in which nobody need die: sessions break, time races, parts stand still."""

from __future__ import annotations

import random
from functools import partial

from bamboo_core.arbiter_state.events import ArbiterPhase
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import AgentReport, Finished, Sealed
from bamboo_sim.protocol.families.moments import wait_until, who_is_told, who_says
from bamboo_sim.protocol.histories.branching import (
    WHOLE,
    At,
    Histories,
    Part,
    inject,
    prefixes,
    snapshot,
)
from bamboo_sim.protocol.histories.history import History
from bamboo_sim.protocol.parts.network import OPERATOR, PLANNER, STORE
from bamboo_sim.protocol.running.injectors import Fault, island
from bamboo_sim.protocol.world.state import World

_FOR_EVER_S = 1e9


def sessions(base: History, part: Part = WHOLE) -> Histories:
    """Sessions break, of one, some or all agents, and are resumed with the same leader. What was
    said last comes all the same, in part or not at all, once or twice."""
    rng = random.Random(base.seed)
    for n, at in enumerate(prefixes(base, part, begun=False), part.turn):
        names = sorted(at[1].nodes)
        for name in names:
            yield inject(at, 0, ("reconnect", name, n % 4))
        some = names if n % 2 else rng.sample(names, max(1, len(names) // 2))
        found = at
        for name in some:
            found = inject(found, rng.randrange(3) if n % 3 else 0, ("reconnect", name, 9))
        yield snapshot(found)
        kind = Sealed if base.job.save_every and n % 2 else Finished
        moment = wait_until(found, who_says(kind))
        if moment is not None:
            yield inject(moment, 0, ("reconnect", who_says(kind)(moment[1]), 0))
        again = rng.choice(names)
        yield inject(found, rng.randrange(9), ("reconnect", again, 9))
        yield inject(found, rng.randrange(60), ("kill", again, n % 3))


def words(base: History, part: Part = WHOLE) -> Histories:
    """Last words of replaced streams come late, while agents leave and come back, the leader
    begins again, a layer is lost, or the job ends."""
    rng, job = random.Random(base.seed), base.job
    for n, at in enumerate(prefixes(base, part), part.turn):
        names = sorted(at[1].nodes)
        name = rng.choice(names)
        kept, delay = rng.choice(((9, 0), (9, 20), (9, 50), (9, 90), (0, 0)))
        again = [("reconnect", a, kept, delay) for a in names]
        changes: tuple[tuple[Fault, ...], ...] = (
            (("scale", 1), *again, ("scale", job.pipelines)),
            (("drain", name), *again, ("drain",)),
            (("kill", name, n % 3), *again),
            (("defect",), *again),
            (("kill", name, n % 3), ("defect",), *again),
            (*again, ("restart operator", False)),
            (*again, ("corrupt",), *again),
        )
        found, change = at, changes[n % len(changes)]
        for i, fault in enumerate(change):
            found = inject(found, rng.randrange(30) if i else 0, fault)
        yield snapshot(found)
        for a in sorted(found[1].nodes):
            found = inject(found, rng.randrange(6), ("reconnect", a, kept, delay))
        yield found


def resets(base: History, part: Part = WHOLE) -> Histories:
    """All connections of some agents, or of all, are reset and opened again; nobody is dead."""
    rng = random.Random(base.seed)
    for n, at in enumerate(prefixes(base, part), part.turn):
        names = sorted(at[1].nodes)
        yield inject(at, 0, ("reset", n % 3, *names))
        some = sorted(rng.sample(names, min(2, len(names))))
        found = inject(at, 0, ("reset", n % 3, *some))
        yield snapshot(found)
        yield inject(found, rng.randrange(60), ("reset", n % 3, *names))
        yield inject(found, rng.randrange(60), ("kill", rng.choice(names), n % 3))
        cut = inject(at, 0, ("cut", *island(names, [OPERATOR]), *island(names[:2], names[2:])))
        yield inject(cut, rng.randrange(4), ("heal",))


def races(base: History, part: Part = WHOLE) -> Histories:
    """Time passes while messages are under way, during a change or not, or while all reports,
    or all but one, are under way."""
    rng, job = random.Random(base.seed), base.job
    for n, at in enumerate(prefixes(base, part, begun=False), part.turn):
        names = sorted(at[1].nodes)
        changes: tuple[Fault, ...] = (
            ("kill", rng.choice(names), n % 3),
            ("restart operator", bool(n % 2)),
            ("notice", rng.choice(names), rng.choice((1.0, 3.0))),
            ("start", AgentId(f"c{n:02d}")),
            ("scale", 1 + n % job.pipelines),
            ("reset", n % 3, *names),
        )
        changed = inject(at, 0, changes[n % len(changes)])
        for found in (at, changed):
            yield inject(found, rng.randrange(20), ("pass", rng.choice((1, 2, 4, 7, 20))))
            events = rng.randrange(5, 150)
            yield inject(found, 0, ("pace", rng.choice((0.01, 0.03, 0.1, 0.3)), events))
        asked = wait_until(changed, partial(_is_asking, reports=n % 2))
        if asked is not None:
            yield inject(asked, 0, ("pass", rng.choice((8, 20, 40))))


def _is_asking(world: World, reports: int) -> bool:
    """The leader has heard so many reports, and another one is under way."""
    state = world.arbiter.state
    is_asking = state.phase_name is ArbiterPhase.COLLECTING and len(state.reports()) == reports
    return is_asking and who_says(AgentReport)(world) is not None


def writes(base: History, part: Part = WHOLE) -> Histories:
    """Writes of facts take long or fail, of a running leader or of a new one."""
    rng = random.Random(base.seed)
    for n, at in enumerate(prefixes(base, part, begun=False), part.turn):
        names = sorted(at[1].nodes)
        seconds = rng.choice((1.0, 5.0, 30.0, 90.0))
        slow: Fault = ("stand still", "machine", STORE, seconds)
        fails: Fault = ("fail writes", rng.choice((1, 2, 6)), bool(n % 2))
        changes: tuple[Fault, ...] = (
            ("kill", rng.choice(names), n % 3),
            ("restart operator", bool(n % 2)),
            ("second operator",),
            ("start", AgentId(f"c{n:02d}")),
            ("reset", 0, *names),
            ("defect",),
        )
        change = changes[n % len(changes)]
        for trouble in (slow, fails):
            yield inject(inject(at, 0, trouble), rng.randrange(9), change)
            found = inject(inject(at, 0, change), rng.randrange(30), trouble)
            yield snapshot(found)
            yield inject(found, rng.randrange(40), changes[rng.randrange(3)])


def pauses(base: History, part: Part = WHOLE) -> Histories:
    """The operator stands still, is too busy to read what agents say, is not sure that it leads, or
    breaks down; or a supervisor stands still. Then everything that has come meanwhile is heard."""
    rng = random.Random(base.seed)
    for n, at in enumerate(prefixes(base, part, begun=False), part.turn):
        names = sorted(at[1].nodes)
        name, other = rng.choice(names), rng.choice(names)
        seconds = rng.choice((0.5, 2.0, 4.0, 20.0))
        pause: tuple[Fault, ...] = (
            ("stand still", "machine", OPERATOR, seconds),
            ("stand still", "lease", OPERATOR, seconds),
            ("defect",),
            ("stand still", "supervisor", name, seconds),
            ("stand still", "inbox", OPERATOR, seconds),
        )
        for fault in pause:
            found = inject(at, 0, fault)
            yield snapshot(found)
            yield inject(found, rng.randrange(30), ("kill", rng.choice(names), n % 3))
            before = inject(at, 0, ("kill", other, n % 3))
            yield inject(before, rng.randrange(30), fault)
        yield inject(inject(at, 0, pause[n % 5]), 3, ("restart operator", bool(n % 2)))
        broken = inject(at, 0, ("reset", 0, *names))
        yield inject(broken, rng.randrange(30), ("stand still", "lease", OPERATOR, seconds))


def hangs(base: History, part: Part = WHOLE) -> Histories:
    """A worker stands still while its supervisor lives, for a while or for ever, also before it
    begins a plan; or it fails."""
    rng = random.Random(base.seed)
    for n, at in enumerate(prefixes(base, part), part.turn):
        names = sorted(at[1].nodes)
        for name in names:
            seconds = _FOR_EVER_S if n % 2 else rng.choice((1.0, 4.0, 40.0))
            yield inject(at, 0, ("stand still", "worker", name, seconds))
        name, other = rng.choice(names), rng.choice(names)
        yield inject(at, 0, ("fail", name, bool(n % 2)))
        found = inject(at, 0, ("stand still", "worker", name, _FOR_EVER_S))
        found = inject(found, rng.randrange(40), ("kill", other, n % 3))
        yield inject(found, 0, ("start", AgentId("b00")))
        found = inject(at, 0, ("kill", other, n % 3))
        yield inject(found, rng.randrange(40), ("stand still", "worker", name, _FOR_EVER_S))
        told = wait_until(inject(found, 0, ("start", AgentId("b00"))), who_is_told)
        if told is not None:
            one = who_is_told(told[1])
            yield inject(told, 0, ("stand still", "worker", one, _FOR_EVER_S))


def storage(base: History, part: Part = WHOLE) -> Histories:
    """The checkpoint storage answers late or with errors, in an undisturbed run, while the leader
    changes, or when a layer is lost."""
    rng = random.Random(base.seed)
    for n, at in enumerate(prefixes(base, part), part.turn):
        seconds = rng.choice((3.0, 20.0, 140.0))
        troubles: tuple[Fault, ...] = (
            ("stand still", "storage", OPERATOR, seconds),
            ("fail storage", 1 + n % 5),
        )
        found = inject(at, 0, troubles[n % 2])
        yield snapshot(found)
        leaver = rng.choice(sorted(at[1].nodes))
        leaves = inject(found, 0, ("start", AgentId("c00")))
        yield inject(leaves, rng.randrange(20), ("notice", leaver, rng.choice((3.0, 30.0))))
        yield inject(found, rng.randrange(30), ("restart operator", bool(n % 4 > 1)))
        for i, name in enumerate(base.job.at_start[n % 2 :: 2]):
            found = inject(found, rng.randrange(2), ("kill", name, (n + i) % 3))
        for i in range(2):
            found = inject(found, 0, ("start", AgentId(f"b{i:02d}")))
        yield snapshot(found)
        yield inject(found, rng.randrange(60), ("restart operator", bool(n % 4 > 1)))
        yield inject(found, rng.randrange(60), troubles[1 - n % 2])
        for name in sorted(found[1].nodes):
            found = inject(found, rng.randrange(20), ("reconnect", name, 0))
        yield found


def _is_saved(world: World) -> bool:
    """Whether the facts name the last checkpoint, and the job is not over."""
    durable, last = world.arbiter.durable, world.job.steps
    return durable.outcome is None and any(m.step == last for m in durable.manifests)


def space(base: History, part: Part = WHOLE) -> Histories:
    """The disk is full when the last checkpoint is due or is written a second time, for a while or
    for good. Meanwhile agents die, leave, come or are heard again, leaders change, and the job is
    suspended or goes on."""
    rng, job = random.Random(base.seed), base.job
    for n, at in enumerate(prefixes(base, part), part.turn):
        full: Fault = ("full disk", _FOR_EVER_S)
        if n % 2:
            at = inject(at, 0, ("suspend",))
        saved = wait_until(at, _is_saved)
        if saved is not None:  # the next plan writes it again
            lost = inject(saved, 0, ("kill", rng.choice(sorted(saved[1].nodes)), n % 3))
            yield inject(lost, 0, ("full disk", rng.choice((0.5, 3.0))))
        found = inject(at, 0, full)
        yield snapshot(found)
        waits = wait_until(found, lambda world: world.arbiter.durable.last_write is not None)
        if waits is None:
            continue
        for seconds in (rng.choice((0.5, 3.0)), rng.choice((20.0, 45.0))):
            yield inject(waits, rng.randrange(80), ("full disk", seconds))
        names = sorted(waits[1].nodes)
        changes: tuple[Fault, ...] = (
            ("kill", rng.choice(names), n % 3),
            ("notice", rng.choice(names), rng.choice((3.0, 30.0))),
            ("drain", rng.choice(names)),
            ("start", AgentId("c00")),
            ("restart operator", bool(n % 2)),
            ("second operator",),
            ("defect",),
            ("reconnect", rng.choice(names), n % 4),
            ("resume", job.pipelines, job.stages) if n % 2 else ("suspend",),
            ("stand still", "storage", OPERATOR, 20.0),
        )
        for change in changes:
            yield _later(waits, rng, change, rng.choice((0.5, 20.0, 45.0)))
        one, other = rng.sample(changes, 2)
        yield _later(inject(waits, rng.randrange(60), one), rng, other, 20.0)
        yield inject(inject(waits, rng.randrange(60), one), rng.randrange(60), other)


def _later(at: At, rng: random.Random, change: Fault, seconds: float) -> At:
    """The change some events later, and room again after so many more seconds."""
    found = inject(at, rng.randrange(80), change)
    return inject(found, 0, ("full disk", seconds))


def silences(base: History, part: Part = WHOLE) -> Histories:
    """Links that lose what they carry without a sign: one message, one direction, or for good. Also
    agents that fall silent while heartbeats become rarer or more frequent."""
    rng = random.Random(base.seed)
    for n, at in enumerate(prefixes(base, part), part.turn):
        names = sorted(at[1].nodes)
        rarer = inject(at, 0, ("beat every", rng.choice((0.8, 3.2))))
        for moment in (rarer, inject(rarer, rng.randrange(60), ("beat every", 0.2))):
            busy = inject(moment, rng.randrange(20), ("stand still", "worker", names[0], 12.0))
            yield inject(busy, 0, ("beat every", rng.choice((0.2, 0.4, 3.2))))
            lost = inject(moment, rng.randrange(20), ("kill silently", rng.choice(names), n % 3))
            yield snapshot(lost)
            yield inject(lost, rng.randrange(20), ("beat every", rng.choice((0.2, 1.6))))
        a, b = rng.choice(names), rng.choice(names)
        yield inject(at, 0, ("drop", n))
        yield inject(inject(at, 0, ("drop", n)), rng.randrange(60), ("drop", n + 1))
        muted = inject(at, 0, ("mute", (a, b), *((b, a),) * (n % 2)))
        yield snapshot(muted)
        yield inject(muted, rng.randrange(120), ("heal",))
        cut = inject(at, 0, ("cut quietly", (a, b)))
        yield snapshot(cut)
        yield inject(cut, rng.randrange(120), ("heal",))
        yield inject(at, 0, ("cut", ((a, b), (a, OPERATOR), (OPERATOR, a))[n % 3]))


def trickles(base: History, part: Part = WHOLE) -> Histories:
    """Links on which a byte comes now and then, or after long silence, in one direction or both, of
    one agent or several, with or without a common end, for good or for a while; and a loss, or
    another leader, in between."""
    rng = random.Random(base.seed)
    for n, at in enumerate(prefixes(base, part), part.turn):
        names = sorted(at[1].nodes)
        if len(names) < 2:
            continue
        a, b = rng.sample(names, 2)
        found = inject(at, 0, ("trickle", (a, b), *((b, a),) * (n % 2)))
        yield snapshot(found)
        yield inject(found, rng.randrange(120), ("heal",))
        yield inject(found, rng.randrange(60), ("kill", rng.choice(names), n % 3))
        yield inject(found, rng.randrange(60), ("restart operator", bool(n % 2)))
        yield inject(found, rng.randrange(60), ("trickle", *((a, x) for x in names if x != a)))
        other, last = rng.sample(names, 2)
        yield inject(found, rng.randrange(60), ("trickle", (other, last)))
        seconds = rng.choice((8.0, 15.0, 20.0, 29.0))
        yield inject(at, 0, ("burst", seconds, (a, b), *((b, a),) * (n % 2)))
        if len(names) >= 4:
            c, d = rng.sample([x for x in names if x not in (a, b)], 2)
            yield inject(at, 0, ("trickle", (a, b), (b, a), (c, d), (d, c)))


def delays(base: History, part: Part = WHOLE) -> Histories:
    """Slow agents, and a planner that takes long or fails."""
    rng = random.Random(base.seed)
    for n, at in enumerate(prefixes(base, part, begun=False), part.turn):
        names = sorted(at[1].nodes)
        name = names[n % len(names)]
        slow = inject(at, 0, ("slow down", name))
        yield snapshot(slow)
        yield inject(slow, rng.randrange(60), ("kill", rng.choice(names), n % 3))
        seconds = rng.choice((1.0, 20.0, 130.0))
        faults: tuple[Fault, ...] = (
            ("stand still", "machine", PLANNER, seconds),
            ("fail planner", 1 + n % 2),
            ("lose continuation",),
        )
        found = inject(inject(at, 0, ("kill", name, n % 3)), 0, faults[n % 3])
        yield snapshot(found)
        yield inject(found, rng.randrange(60), ("kill", rng.choice(names), n % 3))
