"""Whoever computes a leaf, and whoever is lost: the bits are those of a sequential program."""

from __future__ import annotations

from collections import deque
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.graph.small import relative

from bamboo_core.graph.closure import Goals, Holdings, missing, steady, undisturbed
from bamboo_core.model.ids import AgentId
from bamboo_core.model.items import BULK, Item, Kind
from bamboo_core.model.numerics import BatchShape, choose
from bamboo_core.model.program import Op
from bamboo_core.model.rules import prepare
from bamboo_core.scheduling import dry_run, schedule
from bamboo_sim.protocol.parts.symbolic import Symbolic, initial, sequential_step, with_ties

LAYERS, STEP = 3, 1
TIES = [(), ((0, 2),), ((0, 1, 2),)]
CUTS = {1: ((0, 3),), 2: ((0, 1), (1, 3))}
OLDER = BatchShape(24, 2, 4)  # chunks of three leaves of two micro-batches


def agents(count):
    return [AgentId(f"a{i}") for i in range(count)]


def goals_of(batch, names, stages, rng, **more):
    """Every agent holds everything; each leaf of each stage goes to some agent."""
    work = {(s, leaf): rng.choice(names) for s in range(stages) for leaf in range(batch.leaves)}
    wants = {name: ((0, LAYERS),) for name in names}
    split = rng.random() < 0.5
    return Goals(batch, CUTS[stages], wants, work, names[0], STEP, 9, split=split, **more)


class Fleet:
    """Runs programs on symbols, one instruction of a random agent after the other. Between two
    agents, messages of one lane come in the order in which they are sent."""

    def __init__(self, batch, names, rng, ties):
        self.batch, self.rng = batch, rng
        self.backends = {name: Symbolic(name, LAYERS, batch, ties=ties) for name in names}
        for backend in self.backends.values():
            backend.layers = {layer: initial(layer) for layer in range(LAYERS)}
        self.held = {name: {} for name in names}  # item -> received

    def run(self, programs, stop=None):
        """Run all, or ``stop`` instructions."""
        rest = {a: deque(prepare(p, STEP, self.batch, LAYERS)) for a, p in programs.items()}
        sent = {(a, b, lane): deque() for a in rest for b in rest for lane in (False, True)}
        done = 0
        while any(rest.values()) and done != stop:
            order = self.rng.sample(sorted(rest), len(rest))
            agent = next((a for a in order if rest[a] and self.may(a, rest[a][0], sent)), None)
            assert agent is not None, {a: str(x[0].instruction) for a, x in rest.items() if x}
            self.perform(agent, rest[agent].popleft(), sent)
            done += 1
        return done

    def may(self, agent, task, sent):
        x = task.instruction
        if x.op is Op.RECV:
            queue = sent[x.peer, agent, x.item.kind in BULK]
            return bool(queue) and queue[0][0] == x.item
        return all(item in self.held[agent] for item in task.items)

    def perform(self, agent, task, sent):
        backend, held, x = self.backends[agent], self.held[agent], task.instruction
        if x.op is Op.RECV:
            item, payload = sent[x.peer, agent, x.item.kind in BULK].popleft()
            backend.accept(item, payload)
            held.setdefault(item, True)
        elif x.op is Op.SEND:
            message = x.item, backend.payload(x.item)
            sent[agent, x.peer, x.item.kind in BULK].append(message)
        elif x.op not in (Op.END, Op.EXIT):
            record = backend.run(x)
            for item in (*task.gone, *(i for i in task.releases if held.get(i))):
                held.pop(item, None)
                backend.drop(item)
            held.update(dict.fromkeys(task.items_made, False))
            if x.op is Op.VOTE:
                held[Item.vote(STEP, agent)] = False
            if record is not None:
                held[Item.commit(STEP)] = False

    def lose(self, names):
        for name in names:
            del self.backends[name], self.held[name]

    def holdings(self):
        """The reports of the agents."""
        found = {}
        for name, held in self.held.items():
            items = frozenset(i for i in held if i.kind is not Kind.VOTE)
            commits = frozenset({STEP - 1})
            found[name] = Holdings(dict.fromkeys(range(LAYERS), STEP), items, commits, STEP - 1)
        return found

    def is_committed(self):
        """Whether any agent knows that the step is: then nothing of it is computed again."""
        return any(Item.commit(STEP) in held for held in self.held.values())


def build(graph, goals, holdings):
    made = schedule.build(graph, batch=goals.batch, costs=schedule.Costs.even(LAYERS), caps={})
    report = dry_run.dry_run(
        made.programs, batch=goals.batch, layers=LAYERS, holdings=relative(holdings, STEP)
    )
    assert report.ok, str(report)
    return made.programs


@given(seed=st.integers(0, 1 << 30))
@settings(max_examples=40, deadline=None)
@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("stages", [1, 2])
def test_any_agents_compute_any_leaves(stages, ties, seed):
    rng = Random(seed)
    batch = rng.choice([choose(microbatches=rng.randint(1, 40), pipelines_max=1), OLDER])
    names = agents(rng.randint(1, 5))
    goals = goals_of(batch, names, stages, rng, ties=ties, gathers=rng.random() < 0.3)
    programs = build(steady(goals), goals, undisturbed(goals))
    fleet = Fleet(batch, names, rng, ties)
    fleet.run(programs)
    assert voted(fleet, names) == [sequential(batch, ties)] * len(names)


def sequential(batch, ties):
    """The reduced gradients of the sequential program, by layer."""
    weights = [initial(layer) for layer in range(LAYERS)]
    return dict(enumerate(with_ties(sequential_step(weights, batch, STEP), ties)))


def voted(fleet, names):
    """The reduced gradients for which the agents have voted."""
    return [fleet.backends[name].store[Item.vote(STEP, name)].gradients for name in names]


@given(seed=st.integers(0, 1 << 30))
@settings(max_examples=80, deadline=None)
@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("stages", [1, 2])
def test_agents_are_lost_at_any_moment(stages, ties, seed):
    rng = Random(seed)
    batch = rng.choice([choose(microbatches=rng.randint(2, 24), pipelines_max=1), OLDER])
    names = agents(rng.randint(2, 5))
    fleet = Fleet(batch, names, rng, ties)
    goals = goals_of(batch, names, stages, rng, ties=ties)
    graph, holdings = steady(goals), undisturbed(goals)
    for _ in range(rng.randint(1, 3)):
        programs = build(graph, goals, holdings)
        fleet.run(programs, stop=rng.randint(0, sum(map(len, programs.values()))))
        if fleet.is_committed():
            return
        lost = rng.sample(names, rng.randint(0, len(names) - 1))
        fleet.lose(lost)
        names = sorted(fleet.held)
        short = frozenset(rng.sample(names, rng.randint(0, len(names) - 1)))
        staying = [name for name in names if name not in short]
        goals = goals_of(batch, staying, stages, rng, short_notice=short, ties=ties)
        holdings = fleet.holdings()
        graph = missing(goals, holdings)
    fleet.run(build(graph, goals, holdings))
    assert voted(fleet, goals.wants) == [sequential(batch, ties)] * len(goals.wants)
