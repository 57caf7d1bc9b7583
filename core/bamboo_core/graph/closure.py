"""The closure: the tasks that are still missing until the goals of a step are reached.

Goals: every wanted layer, and every layer that an agent still holds, reaches the version after the
target step on each of its agents; every member that computes ends the target step. The input is
what agents hold; where in its program an agent stopped does not matter. The package's docstring
says which module contributes what.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

from bamboo_core.graph.builder import GraphBuilder
from bamboo_core.graph.gradients import Gradients
from bamboo_core.graph.holdings import HoldingsIndex
from bamboo_core.graph.periodic import Periodic as Periodic
from bamboo_core.graph.periodic import PeriodicTasks
from bamboo_core.graph.tasks import Dependency
from bamboo_core.graph.tasks import Gather as Gather
from bamboo_core.graph.tasks import Holdings as Holdings
from bamboo_core.graph.tasks import LayersLost as LayersLost
from bamboo_core.graph.tasks import TaskGraph as TaskGraph
from bamboo_core.graph.tasks import TaskId as TaskId
from bamboo_core.graph.tasks import Transfer as Transfer
from bamboo_core.graph.versions import Versions, run_around
from bamboo_core.model.ids import AgentId, Range
from bamboo_core.model.items import Item
from bamboo_core.model.numerics import BatchShape
from bamboo_core.model.program import Instruction, Op
from bamboo_core.model.ties import Ties, other_stages


@dataclass(frozen=True)
class Goals:
    """The results that a plan asks of the target step.

    Members that are neither in ``wants`` nor learners leave after the target step.
    """

    batch: BatchShape
    cut: tuple[Range, ...]  # stage -> layers; covers the model in order
    wants: Mapping[AgentId, tuple[Range, ...]]  # live agents and what they must hold afterwards
    assignment: Mapping[tuple[int, int], AgentId]  # (stage, leaf) -> agent, if not begun elsewhere
    coordinator: AgentId  # a live agent
    target: int  # at most ``last``
    last: int  # index of the epilogue
    short_notice: Set[AgentId] = frozenset()  # members that only send what they hold
    split: bool = False  # separate I and W
    gathers: bool = False  # slices of gradients are gathered, rather than a transfer for each pair
    periodic: Periodic = field(default_factory=Periodic)
    ties: Ties = ()  # layers that need each other's reduced gradients
    # Learners receive and update copies. They have no vote, and no agent waits for them.
    learners: Mapping[AgentId, tuple[Range, ...]] = field(default_factory=dict)


def missing(
    goals: Goals,
    holdings: Mapping[AgentId, Holdings],
    *,
    files: Set[int] = frozenset(),
    index: HoldingsIndex | None = None,
) -> TaskGraph:
    """Tasks that are still needed, given what every member holds.

    index: of these holdings, with those on short notice and learners, if the caller has it.
    holdings: of all members, live or leaving; files: layers that a checkpoint has at exactly
    version ``target``. LayersLost if a layer is lost.
    """
    closure = _Closure(goals, holdings, frozenset(files), steady=False, index=index)
    return closure.graph()


def steady(goals: Goals) -> TaskGraph:
    """The tasks of an undisturbed step: every agent holds what it wants.

    goals.target is any step but 0 and the last. Validation and checkpoints carry ``every``.
    """
    return _Closure(goals, undisturbed(goals), frozenset(), steady=True).graph()


def epilogue(goals: Goals) -> TaskGraph:
    """The tasks of the epilogue after an undisturbed last step; goals.target == goals.last."""
    return _Closure(goals, undisturbed(goals), frozenset(), steady=False).graph()


def undisturbed(goals: Goals) -> dict[AgentId, Holdings]:
    """Holdings at the beginning of the target step if no failure has occurred."""
    done = goals.target - 1
    return {
        agent: Holdings(
            {x: goals.target for lo, hi in ranges for x in range(lo, hi)},
            commits=frozenset({done}),
            ended=done,
        )
        for agent, ranges in {**goals.wants, **goals.learners}.items()
    }


class _Closure:
    """One computation of missing tasks; call ``graph`` once."""

    def __init__(
        self,
        goals: Goals,
        holdings: Mapping[AgentId, Holdings],
        files: frozenset[int],
        *,
        steady: bool,
        index: HoldingsIndex | None = None,
    ) -> None:
        self._goals, self._holdings = goals, holdings
        idle = goals.short_notice | goals.learners.keys()
        index = index or HoldingsIndex(
            holdings,
            batch=goals.batch,
            target=goals.target,
            short_notice=idle,
            ties=goals.ties,
        )
        computing = tuple(sorted(a for a in holdings if a not in idle))
        self._updating = (*computing, *sorted(goals.learners))
        self._builder = GraphBuilder(
            batch=goals.batch,
            cut=goals.cut,
            index=index,
            computing=computing,
            takes_part={a: self._layers(a, index) for a in self._updating},
            files=files,
            ties=goals.ties,
            initial=goals.target == 0,
            # in the epilogue only END of the previous step waits for copies
            prefers_files=goals.target == goals.last and Item.commit(-1) not in index.where,
        )
        self._refuse_lost_layers()
        self._versions = Versions(self._builder)
        self._periodic_tasks = PeriodicTasks(
            self._builder,
            self._versions,
            goals.periodic,
            assignment=goals.assignment,
            coordinator=goals.coordinator,
            step=None if steady else goals.target,
            final=goals.target == goals.last,
        )
        self._gradients = Gradients(
            self._builder,
            self._versions,
            goals.assignment,
            split=goals.split,
            gathers=goals.gathers,
        )
        self._votes: dict[AgentId, TaskId] = {}
        self._commit: TaskId | None = None
        self._commit_sources: dict[AgentId, Dependency | None] = {}
        self._updates: dict[AgentId, list[TaskId]] = {}
        self._older: dict[AgentId, TaskId] = {}

    def _layers(self, agent: AgentId, index: HoldingsIndex) -> tuple[int, ...]:
        wanted = self._goals.wants.get(agent) or self._goals.learners.get(agent, ())
        return tuple(sorted({x for r in wanted for x in range(*r)}.union(index.have[agent])))

    def _refuse_lost_layers(self) -> None:
        builder = self._builder
        lost = tuple(
            x
            for x in range(builder.layers)
            if not builder.initial and x not in builder.index.sources and x not in builder.files
        )
        if lost:
            raise LayersLost(lost)

    def graph(self) -> TaskGraph:
        self._hold()
        self._periodic_tasks.save()
        if self._goals.target < self._goals.last:
            self._train()
        else:
            self._periodic_tasks.close()
        self._end_older()
        if self._goals.target < self._goals.last:
            self._end()
        self._leave()
        return TaskGraph(tuple(sorted(self._holdings)), self._builder.tasks)

    def _hold(self) -> None:
        """Bring every layer to the target version on every agent that takes part."""
        for agent in self._updating:
            for layer in self._builder.takes_part[agent]:
                self._versions.dependency(agent, layer)

    def _train(self) -> None:
        commit = Item.commit(0)
        if not self._builder.exists(commit):
            self._gradients.build()
            for agent in self._builder.computing:
                self._vote(agent)
            self._make_commit()
        if self._goals.periodic.is_scored:
            self._periodic_tasks.seal_after(self._committed(self._goals.coordinator))
        for agent in self._updating:
            self._update(agent)

    def _spans(self, agent: AgentId) -> list[tuple[int, Range]]:
        """(stage, layers) for each longest run of the agent's layers within a stage."""
        part = set(self._builder.takes_part[agent])
        spans: list[tuple[int, Range]] = []
        for stage, (lo, hi) in enumerate(self._goals.cut):
            layer = lo
            while layer < hi:
                if layer in part:
                    span = run_around(layer, (lo, hi), part.__contains__)
                    spans.append((stage, span))
                    layer = span[1]
                else:
                    layer += 1
        return spans

    def _vote(self, agent: AgentId) -> None:
        gradients: list[Dependency] = []
        versions: dict[Dependency, None] = {}
        ranges: list[Range] = []
        spans = self._spans(agent)
        stages = list(dict.fromkeys(stage for stage, _ in spans))
        tied = self._tied_stages((x for _, span in spans for x in range(*span)), stages)
        for stage in (*stages, *tied):
            gradients += self._gradients.reduced(agent, stage)
        for stage, span in spans:
            ranges += [self._goals.cut[stage], span, (0, self._gradients.slices(stage))]
            versions |= dict.fromkeys(self._versions.dependencies(agent, span))
        for stage in tied:  # of which it attests no layer
            lo, _ = cut = self._goals.cut[stage]
            ranges += [cut, (lo, lo), (0, self._gradients.slices(stage))]
        vote = Instruction(Op.VOTE, ranges=tuple(ranges))
        self._votes[agent] = self._builder.add(agent, vote, [*gradients, *versions])

    def _tied_stages(self, layers: Iterable[int], but: Iterable[int]) -> list[int]:
        """Other stages whose reduced gradients these layers need, too."""
        return other_stages(self._goals.ties, self._goals.cut, layers, but)

    def _make_commit(self) -> None:
        coordinator = self._goals.coordinator
        waits: list[Dependency | None] = [
            self._builder.deliver(Item.vote(0, agent), vote, coordinator)
            for agent, vote in self._votes.items()
        ]
        waits += self._periodic_tasks.validate()
        commit = Instruction(Op.COMMIT, agents=tuple(self._votes))
        self._commit = self._builder.add(coordinator, commit, waits)

    def _committed(self, agent: AgentId) -> Dependency | None:
        """How the agent gets the commit record of the target step."""
        if agent not in self._commit_sources:
            item, builder = Item.commit(0), self._builder
            if self._commit is None:
                self._commit_sources[agent] = builder.fetch(item, agent)
            else:
                self._commit_sources[agent] = builder.deliver(item, self._commit, agent)
        return self._commit_sources[agent]

    def _update(self, agent: AgentId) -> None:
        """UPDATE of every layer that the agent has.

        All F, B, I and V with the old version precede the commit, so SAVE is the only other
        dependency. A copy of the old version is sent as soon as that version exists.
        """
        committed = self._committed(agent)
        waits: list[Dependency | None] = []
        for stage, (lo, hi) in self._spans(agent):
            vote = self._votes.get(agent)
            stages = [stage, *self._tied_stages(range(lo, hi), (stage,))]
            waits = [committed]  # a vote depends on the gradients already
            if vote:
                waits.append(vote)
            else:
                waits += [w for s in stages for w in self._gradients.reduced(agent, s)]
            waits += [
                *self._versions.dependencies(agent, (lo, hi)),
                *self._periodic_tasks.saves(agent, (lo, hi)),
            ]
            counts = ((self._goals.cut[s], (0, self._gradients.slices(s))) for s in stages)
            ranges = tuple(x for both in counts for x in both)
            update = Instruction(Op.UPDATE, 0, lo, hi, ranges=ranges)
            self._updates.setdefault(agent, []).append(self._builder.add(agent, update, waits))

    def _end_older(self) -> None:
        """END of the previous step for laggards, if any agent knows its commit.

        (No agent does after a restore from files.) In the epilogue, which has no votes, this END
        also proves that the agent has all its layers.
        """
        before = Item.commit(-1)
        if before not in self._builder.index.where:
            return
        for agent in self._updating:
            waits = [self._builder.fetch(before, agent), *self._versions.updates(agent, -1)]
            copies = self._copies(agent) if self._goals.target == self._goals.last else []
            if copies or self._holdings[agent].ended < self._goals.target - 1:
                end = Instruction(Op.END, -1)
                self._older[agent] = self._builder.add(agent, end, [*waits, *copies])

    def _copies(self, agent: AgentId) -> list[Dependency | None]:
        layers = self._builder.takes_part[agent]
        return [w for x in layers if isinstance(w := self._versions.dependency(agent, x), Transfer)]

    def _end(self) -> None:
        for agent in self._updating:
            waits: list[Dependency | None] = [self._committed(agent), self._older.get(agent)]
            waits += self._updates.get(agent, ())
            if agent == self._goals.coordinator:
                waits.append(self._periodic_tasks.seal)
            self._builder.add(agent, Instruction(Op.END), waits)

    def _leave(self) -> None:
        """EXIT of leavers, after the commit: it proves that all agents have what they want.

        Until then even a leaver on short notice stays a member and a source, since its messages
        may be cut off or fenced by another STOP. The epilogue has no commit, so leavers stay
        until all agents have finished, or as long as they can.
        """
        if self._goals.target >= self._goals.last:
            return
        for agent in self._holdings:
            if agent in self._goals.wants or agent in self._goals.learners:
                continue
            own: list[Dependency | None] = [t for t in self._builder.tasks if t.agent == agent]
            if agent in self._goals.short_notice:
                own.append(self._committed(agent))
            self._builder.add(agent, Instruction(Op.EXIT), own)
