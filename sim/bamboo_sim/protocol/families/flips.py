"""Families of histories in which a device computes wrong bits, or a memory changes them."""

from __future__ import annotations

import random
from functools import partial
from itertools import product

from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.protocol.messages import Disputed
from bamboo_sim.protocol.families.moments import wait_until, who_says
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
from bamboo_sim.protocol.parts.network import OPERATOR
from bamboo_sim.protocol.running.injectors import Fault, island
from bamboo_sim.protocol.world.state import World


def _untold(moment: At, names: list[AgentId], n: int) -> Histories:
    """Another agent dies while the dispute is on its way to the operator, or after it is lost."""
    teller = who_says(Disputed)(moment[1])
    assert teller is not None
    for other in sorted(set(names) - {teller}):
        yield inject(moment, 0, ("kill", other, n % 3))
        lost = inject(moment, 0, ("reconnect", teller, 0))
        yield inject(lost, 0, ("kill", other, n % 3))


def _is_in_question(world: World) -> object:
    """A third agent is to decide."""
    return world.operators.durable.question


def _questions(moment: At, names: list[AgentId], n: int) -> Histories:
    """Another fault before a third agent has decided: one of the two dies, or others do."""
    questioned = wait_until(moment, _is_in_question)
    if questioned is None:
        return
    question = questioned[1].operators.durable.question
    assert question is not None
    two, others = sorted(question.agents), sorted(set(names) - question.agents)
    rng = random.Random(n)
    faults: list[Fault] = [("kill", name, n % 3) for name in (*two, *others)]
    faults += [("restart operator", bool(n % 2)), ("reconnect", rng.choice(names), 0)]
    faults += [("start", AgentId(f"c{n:02d}")), ("freeze", rng.choice(names))]
    for fault in faults:
        yield inject(questioned, rng.randrange(60), fault)
    both = inject(questioned, rng.randrange(30), ("restart operator", bool(n % 2)))
    yield inject(both, rng.randrange(30), ("kill", rng.choice(names), n % 3))


def _is_half_void(world: World) -> object:
    """Some agents know that the step is void, others do not."""
    void = world.operators.durable.void
    knows = {node.executor.fence >= void for node in world.nodes.values()}
    return void != Fence() and len(knows) == 2


def _restarts(moment: At, death: Fault, n: int) -> Histories:
    """The operator is restarted while the step is made void; then an agent dies."""
    half = wait_until(moment, _is_half_void)
    if half is not None:
        yield inject(half, 0, ("restart operator", bool(n % 2)))
    rng = random.Random(n)
    both = inject(moment, rng.randrange(20), ("restart operator", bool(n % 2)))
    yield snapshot(both)
    yield inject(both, rng.randrange(30), death)


def flips(base: History, part: Part = WHOLE) -> Histories:
    """One forward is wrong, of an owner or a replica, once or as often as it is computed; alone,
    and with another fault before or after the voters disagree."""
    rng = random.Random(base.seed)
    for n, at in enumerate(prefixes(base, part), part.turn):
        names = sorted(at[1].nodes)
        for name in names:
            for op in ("F", "R"):
                yield inject(at, 0, ("flip", name, op, False))
        name, op = names[n % len(names)], ("F", "R")[n // 2 % 2]
        lasting = inject(at, 0, ("flip", name, op, True))
        yield snapshot(lasting)
        disputed = wait_until(lasting, who_says(Disputed))
        if disputed is not None:
            yield from _questions(disputed, names, n)
            for victim in rng.sample(names, 2):  # while the step is computed again
                yield inject(disputed, rng.randrange(10, 60), ("kill", victim, n % 3))
        found = inject(at, 0, ("flip", name, op, n % 5 == 4))
        moment = wait_until(found, who_says(Disputed))
        others: tuple[Fault, ...] = (
            ("kill", rng.choice(names), n % 3),
            ("restart operator", bool(n % 2)),
            ("reconnect", rng.choice(names), 0),
            ("start", AgentId(f"c{n:02d}")),
            ("freeze", rng.choice(names)),
        )
        if moment is not None:
            yield from _restarts(moment, others[0], n)
        for other in others:
            yield inject(found, rng.randrange(120), other)
            if moment is not None:
                yield inject(moment, rng.randrange(12), other)
        if moment is not None:
            yield from _untold(moment, names, n)


def merges(base: History, part: Part = WHOLE) -> Histories:
    """An agent adds two sums of gradients up wrong, once or as often as it does it in that step;
    alone, and with another fault before or after its check."""
    rng = random.Random(base.seed)
    for n, at in enumerate(prefixes(base, part), part.turn):
        names = sorted(at[1].nodes)
        for name in names:
            yield inject(at, 0, ("flip", name, "FOLD", bool(n % 2)))
        wrong = inject(at, 0, ("flip", names[n % len(names)], "FOLD", bool(n // 2 % 2)))
        others: tuple[Fault, ...] = (
            ("kill", rng.choice(names), n % 3),
            ("restart operator", bool(n % 2)),
            ("reconnect", rng.choice(names), 0),
            ("start", AgentId(f"c{n:02d}")),
            ("freeze", rng.choice(names)),
        )
        for other in others:
            yield inject(wrong, rng.randrange(90), other)


def votes(base: History, part: Part = WHOLE) -> Histories:
    """An agent votes with a wrong gradient, once or whenever it votes about that step; alone, and
    with another fault before or after the voters disagree."""
    rng = random.Random(base.seed)
    for n, at in enumerate(prefixes(base, part), part.turn):
        names = sorted(at[1].nodes)
        newcomers: list[Fault] = [("start", AgentId(f"c{n:02d}-{i}")) for i in range(2)]
        for name, lasts in product(names, (False, True)):
            wrong = inject(at, 0, ("flip", name, "VOTE", lasts))
            yield snapshot(wrong)
            for newcomer in newcomers:
                wrong = inject(wrong, rng.randrange(90), newcomer)
            yield wrong
        wrong = inject(at, 0, ("flip", rng.choice(names), "VOTE", bool(n % 2)))
        moment = wait_until(wrong, who_says(Disputed))
        others: tuple[Fault, ...] = (
            ("kill", rng.choice(names), n % 3),
            ("restart operator", bool(n % 2)),
            ("reconnect", rng.choice(names), 0),
            ("freeze", rng.choice(names)),
        )
        for other in others:
            yield inject(wrong, rng.randrange(90), other)
            if moment is not None:
                yield inject(moment, rng.randrange(12), other)
        if moment is not None:
            yield from _untold(moment, names, n)


def tellers(base: History, part: Part = WHOLE) -> Histories:
    """An agent finds a wrong forward, and is cut off before the operator hears of it. The others go
    on, and save the step in dispute; then the links heal, and the word comes after all."""
    for at in prefixes(base, part):
        for name in sorted(at[1].nodes):
            moment = wait_until(inject(at, 0, ("flip", name, "F", False)), who_says(Disputed))
            teller = None if moment is None else who_says(Disputed)(moment[1])
            if moment is None or teller is None:
                continue
            step = moment[1].nodes[teller].executor.step
            others = moment[1].nodes.keys() - {teller}
            alone = inject(moment, 0, ("cut", *island([teller], [*sorted(others), OPERATOR])))
            saved = wait_until(alone, partial(_is_saved, step=step + 1))
            if saved is not None:
                yield inject(saved, 0, ("heal",))


def _is_saved(world: World, step: int) -> bool:
    """A checkpoint of that step or a later one is complete, and the operator knows it."""
    return any(m.step >= step for m in world.operators.durable.manifests)


def spreads(base: History, part: Part = WHOLE) -> Histories:
    """A layer changes in an agent's memory; another agent dies, and a newcomer copies what is left
    before the copies are compared. Then two equal copies may be wrong, and the third right."""
    for n, at in enumerate(prefixes(base, part), part.turn):
        nodes = at[1].nodes
        for name in sorted(nodes):
            for layer in sorted(nodes[name].worker.backend.layers)[:1]:
                altered = inject(at, 0, ("alter", name, layer))
                for other in sorted(nodes.keys() - {name}):
                    killed = inject(altered, 0, ("kill", other, n % 3))
                    yield inject(killed, n % 5, ("start", AgentId(f"d{n:02d}")))


def relapses(base: History, part: Part = WHOLE) -> Histories:
    """A layer changes in an agent's memory, so a new attempt begins from a checkpoint that is not
    the newest one: others write theirs while the leader stands still. Before the attempt has
    computed anything, all agents die."""
    rng = random.Random(base.seed)
    for n, at in enumerate(prefixes(base, part), part.turn):
        nodes = at[1].nodes
        for name in sorted(nodes):
            for layer in sorted(nodes[name].worker.backend.layers)[:1]:
                moment = wait_until(inject(at, 0, ("alter", name, layer)), who_says(Disputed))
                if moment is None:
                    continue
                slow = inject(moment, 0, ("stand still", "machine", OPERATOR, 4.0))
                found = wait_until(slow, lambda world: world.rolled_back)
                if found is None or not _leaves_files(found[1]):
                    continue
                gap, live = rng.randrange(40), sorted(found[1].nodes)
                for i, other in enumerate(live):
                    found = inject(found, 0 if i else gap, ("kill", other, n % 3))
                for i in range(len(live)):
                    found = inject(found, 0, ("start", AgentId(f"b{i:02d}")))
                yield found


def _leaves_files(world: World) -> bool:
    """Whether the newest attempt began before some checkpoint."""
    return any(step > max(world.rolled_back.values()) for _, step in world.sealed)


def alterations(base: History, part: Part = WHOLE) -> Histories:
    """A layer changes in an agent's memory; alone, and with another fault before or after the
    difference is found."""
    rng = random.Random(base.seed)
    for n, at in enumerate(prefixes(base, part), part.turn):
        names = sorted(at[1].nodes)
        holders = [a for a in names if at[1].nodes[a].worker.backend.layers]
        if not holders:
            continue
        for name in holders:
            layer = rng.choice(sorted(at[1].nodes[name].worker.backend.layers))
            yield inject(at, 0, ("alter", name, layer))
        name = holders[n % len(holders)]
        layer = rng.choice(sorted(at[1].nodes[name].worker.backend.layers))
        altered = inject(at, 0, ("alter", name, layer))
        moment = wait_until(altered, who_says(Disputed))
        for _ in range(3 if moment is not None else 0):
            assert moment is not None  # a new plan shortly before: it finds the files written
            before = max(0, moment[0].script[-1][0] - rng.randrange(40))
            yield inject(altered, before, ("restart operator", bool(n % 2)))
        other = rng.choice([a for a in names if a != name] or names)
        faults: tuple[Fault, ...] = (
            ("kill", name, n % 3),
            ("kill", other, n % 3),
            ("restart operator", bool(n % 2)),
            ("reconnect", rng.choice(names), 0),
            ("start", AgentId(f"c{n:02d}")),
        )
        for fault in faults:
            yield inject(altered, rng.randrange(120), fault)
            if moment is not None:
                yield inject(moment, rng.randrange(12), fault)
        # a newcomer may copy the layer from the wrong agent before the copies are compared
        killed = inject(altered, rng.randrange(20), ("kill", other, n % 3))
        yield inject(killed, rng.randrange(5), ("start", AgentId(f"d{n:02d}")))
        if moment is not None:
            yield from _untold(moment, names, n)
