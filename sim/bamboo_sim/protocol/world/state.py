"""The state of one history. It decides nothing: what happens next is for the simulation."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from copy import copy
from math import inf
from typing import Self

from bamboo_core.api.outcome import Outcome
from bamboo_core.arbiter.arbiter import Arbiter
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.placement.plan import Plan
from bamboo_core.protocol.supervisor import PeerClosed
from bamboo_sim.protocol.control.operators import Operators
from bamboo_sim.protocol.parts.job import Job
from bamboo_sim.protocol.parts.messages import Ended, Look
from bamboo_sim.protocol.parts.meters import Meter
from bamboo_sim.protocol.parts.network import KEEP_ALIVE_S, WATCH, Network
from bamboo_sim.protocol.parts.symbolic import Flip
from bamboo_sim.protocol.parts.users_code import BadCode, Crash
from bamboo_sim.protocol.world.folder import Folder
from bamboo_sim.protocol.world.node import Node

LINKS = "links"
"""What stands still while links are cut for a time."""
SESSION = "session"
"""What stands still while an agent cannot reach the operator for a time of its own."""

STORAGE = "storage"
"""What stands still while reads and writes of checkpoints take long."""


class World:
    """Everything that exists in one history, and notes of what has happened in it."""

    def __init__(self, job: Job, seed: int = 0, policy: str = "random") -> None:
        self.job = job
        self.policy = policy  # how the next event is chosen
        self.rng = random.Random(seed)
        self.now, self.events = 0.0, 0
        self.burst = 0.0  # probability that an agent runs its next instruction at once
        self.outcome, self.resets = "", 0
        self.losses, self.causes = 0, 0  # agents lost, and faults injected
        self.has_expelled = self.has_cuts = False
        self.has_given_up = False  # the job was restored while a layer was still held
        self.misled_until = -inf  # live agents may be suspected
        self.was_misled = False  # at any time
        self.ill_at: dict[AgentId, float] = {}  # when something was wrong with it last
        self.ill_since: dict[AgentId, float] = {}  # when that had begun
        self.ill_after = (0, -1)  # the newest commit then
        self.asked: dict[AgentId, float] = {}  # when the leader's newest STOP went to it
        self.struck: frozenset[str] = frozenset()  # kinds of faults that had an effect
        self.is_raced = False  # time has passed while messages were under way
        self.is_silent = False  # something was lost of which nobody knows
        # (sender, receiver, fence) -> since when the receiver has waited for what crawls to it
        self.crawls: Mapping[tuple[AgentId, AgentId, Fence], float] = {}
        self.late: tuple[tuple[int, AgentId], ...] = ()  # last words that come at some event
        self.newest = (0, -1)  # attempt and step of the newest commit
        self.computed: frozenset[int] = frozenset()  # attempts that have committed a step
        # attempts that began because of wrong bits, and from which step
        self.rolled_back: Mapping[int, int] = {}
        self.kind = ""  # products of the processors of the newest durable plan; empty: none yet
        self.told_kind = ""  # those to which the newest event tells a change
        self.trace = 0  # hash of all choices
        self.points = Counter[tuple[str, str, str]]()  # where agents were killed
        self.noticed: frozenset[AgentId] = frozenset()
        # sessions of agents that died unseen: agent, its operator, number
        self.silent: frozenset[tuple[AgentId, AgentId, int]] = frozenset()
        self.beat_s = 0.0  # time between heartbeats that agents were told last; 0: the usual one
        self.silent_since = 0.0  # when the newest silence began, or the pace changed
        self.flips: dict[AgentId, Flip] = {}  # agents whose device was wrong
        self.altered: dict[AgentId, int] = {}  # agents with a wrong copy of a layer -> attempt
        # agents whose claims were in dispute; those whose gradients differed without a majority
        self.differing: frozenset[AgentId] = frozenset()
        self.tied: frozenset[AgentId] = frozenset()
        self.told: frozenset[tuple[int, int]] = frozenset()  # (attempt, step) of disputes
        # (attempt, step) of the first wrong commit that nobody could see; None: there is none
        self.spoiled: tuple[int, int] | None = None
        self.still: dict[tuple[str, AgentId], float] = {}  # what stands still, until when
        self.slow: frozenset[AgentId] = frozenset()  # agents that seldom run
        self.meter: tuple[Meter, int] | None = None  # by which agents measure the network
        self.pace_s, self.paced = 0.0, 0  # time of an event, for so many events
        self.ahead_s = 0.0  # time that has not passed yet
        self.keep_alive_at = inf  # broken sessions are noticed from then on
        self.storage_faults = 0  # so many reads and writes of files fail
        self.has_storage_failed = False
        self.bad_code: BadCode | None = None  # of the user's, that fails on every agent
        self.crash: Crash | None = None  # the newest that was the first of its kind
        # agents may wait for files: for a slow storage, or for what is away
        self.slow_until = self.away_until = -inf
        self.refused, self.refused_at = 0, -inf  # last checkpoints not written; when the newest
        self.unwritten_since = inf  # when the leader heard that; inf: it is written, or not due
        self.trickled: frozenset[AgentId] = frozenset()  # ends of links that have trickled
        self.released: frozenset[AgentId] = frozenset()  # agents that are not needed to write it
        self.has_paused = False  # something of the control plane has stood still
        self.planner_faults = self.planner_losses = 0
        self.write_faults = 0  # so many writes of facts fail
        self.are_answers_lost = False  # they are performed all the same
        self.nodes: dict[AgentId, Node] = {}  # the live agents
        self.ready: list[AgentId] = []  # agents that have work
        self.sealed = Folder({(0, job.begins_at): job.origin} if job.begins_at else {})
        self.dead: set[AgentId] = set()
        self.orphans: Counter[Fence] = Counter()  # commits of superseded plans
        self.network, self.operators = Network(), Operators(job)
        self.pods = list(job.at_start)  # of all agents that were ever started

    def copy(self) -> Self:
        """An independent copy."""
        new = type(self).__new__(type(self))
        new.__dict__.update(self.__dict__)
        new.rng = random.Random()
        new.rng.setstate(self.rng.getstate())
        new.network, new.operators = self.network.copy(), self.operators.copy()
        for name in ("ready", "sealed", "dead", "orphans", "points", "pods", "asked"):
            setattr(new, name, copy(getattr(self, name)))
        new.nodes = {a: n.copy(new.sealed) for a, n in self.nodes.items()}
        return new

    @property
    def arbiter(self) -> Arbiter:
        """The leader's."""
        return self.operators.arbiter

    @property
    def is_over(self) -> bool:
        """Whether the job has ended, or is suspended as it should be."""
        operators = self.operators
        if operators.durable.outcome is Outcome.SUSPENDED and not operators.goal.suspended:
            return False  # the leader may hear of it only after a pause
        return operators.durable.outcome is not None is not operators.arbiter.durable.outcome

    @property
    def effects(self) -> frozenset[str]:
        """Kinds of faults that have had an effect, as far as that is counted, and the ways in which
        plans have shared lost work."""
        network = self.network
        sent = (
            ("mute", network.has_muffled),
            ("inbox", network.has_waited),
            ("trickle", network.has_crawled),
        )
        files = self.sealed.effects.keys()
        sharing = self.operators.ways
        return self.struck | files | sharing | {kind for kind, has_struck in sent if has_struck}

    @property
    def plan(self) -> Plan | None:
        """The newest durable plan."""
        return self.operators.plan

    # ------------------------------------------------------------ what is wrong

    @property
    def is_misled(self) -> bool:
        """Whether live agents may be suspected: something is wrong, or was not long ago."""
        return self.now <= self.misled_until

    def mislead(self, *agents: AgentId) -> None:
        """Live agents may be suspected from now on, until a while after all is well: these, or
        all."""
        self.was_misled = True
        self.misled_until = self.now + self.job.arbiter_job.timing.voter_wait_s
        self.make_ill(*(agents or self.nodes))

    @property
    def is_storage_slow(self) -> bool:
        """Whether agents may have to wait for the storage: it is slow, or was not long ago."""
        self.look_at_files()
        return self.now <= self.slow_until

    @property
    def are_files_away(self) -> bool:
        """Whether agents may have to wait for files that they have met: they are not there, or were
        not long ago."""
        self.look_at_files()
        return self.now <= self.away_until

    def look_at_files(self) -> None:
        """Files that are away, or a slow storage, excuse until a while after they are healed."""
        folder, until = self.sealed, self.now + self.job.arbiter_job.timing.voter_wait_s
        if any(kind == STORAGE for kind, _ in self.still):
            self.slow_until = until
        if folder.is_whole:
            folder.is_missed = False
        elif folder.is_missed:
            self.away_until = until

    def strike(self, kind: str) -> None:
        """A fault has had an effect."""
        self.struck |= {kind}

    def make_ill(self, *agents: AgentId) -> None:
        """Something is wrong with these agents at this moment."""
        known = self.ill_at if self.ill_after == self.newest else {}
        new = {a: self.now for a in agents if a not in known}
        self.ill_since, self.ill_after = {**self.ill_since, **new}, self.newest
        self.ill_at = {**self.ill_at, **dict.fromkeys(agents, self.now)}

    def well_since(self, agent: AgentId) -> float:
        """From when on nothing has been wrong with the agent."""
        return self.ill_at.get(agent, 0.0)

    def look_what_is_wrong(self) -> None:
        """Time has passed: what is broken still is. While operators, the planner or the API server
        stand still, nothing can be put right."""
        self.look_at_files()
        network, names = self.network, self.nodes.keys()
        if not (network.cut or network.muted or network.frozen or self.still or self.paced):
            return
        ill = {end for link in network.cut | network.muted for end in link}
        ill = (ill | network.frozen | {name for _, name in self.still}) & names
        is_held_up = self.paced > 0 or any(
            name not in self.pods for kind, name in self.still if kind != LINKS
        )
        if ill or self.paced or (is_held_up and self.is_misled):
            self.mislead(*ill)
        if is_held_up:
            self.make_ill(*names)

    def kill(self, name: AgentId, *, fate: int = 0, is_seen: bool = True) -> None:
        """The process ends; ``fate`` of what it had sent: 0 all comes, 1 nothing, 2 a random half,
        3 + i: number i is lost, with all that it had sent to the same one later.

        is_seen: its sockets are closed, and its end is certain; else it is only silent.
        """
        node = self.nodes.pop(name, None)
        if node is None:
            return
        if name in self.ready:
            self.ready.remove(name)
        self.dead.add(name)
        self.network.forget(name, fate, self.rng)
        if not is_seen:
            self.is_silent = True
            self.silent = self.silent | {(name, node.operator, node.stream)}
            self.keep_alive_at = min(self.keep_alive_at, self.now + KEEP_ALIVE_S)
            return
        self.network.post(name, node.operator, Ended(name, node.stream))
        for operator in self.operators.running:
            self.network.post(WATCH, operator, Look(frozenset({name})))
        for other in self.nodes.values():
            if name in other.watched:
                self.network.post(WATCH, other.name, PeerClosed(name))
