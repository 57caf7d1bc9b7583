"""Messages of the simulated world itself; those of the product are in the core.

They say that a session begins or ends, that facts are read and written, and that somebody is to
look at the cluster or for the leader.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bamboo_core.arbiter_state.durable import Durable
from bamboo_core.job.durable_writer import LeaderFacts
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import Hello


@dataclass(frozen=True)
class Opened:
    """An agent's stream begins with its Hello."""

    hello: Hello
    stream: int


@dataclass(frozen=True)
class Ended:
    """An agent's stream has ended."""

    agent: AgentId
    stream: int


@dataclass(frozen=True)
class Closed:
    """The operator has ended a stream."""

    stream: int


class FindLeader:
    """An agent's session has ended; it looks for the leader."""


@dataclass(frozen=True)
class Look:
    """Reconcile the job. dead: agents whose pods are seen to have ended."""

    dead: frozenset[AgentId] = frozenset()


class LeadAgain:
    """The operator was overtaken: reconcile begins with the present facts."""


@dataclass(frozen=True)
class LookAtFacts:
    """The first half of a write: read what it would replace."""

    durable: Durable
    leader_facts: LeaderFacts  # of the operator that writes


@dataclass(frozen=True)
class Put:
    """The second half: the facts as JSON, and the version that they replace."""

    version: int
    text: str
    order: LookAtFacts
    is_sent: ClassVar = True  # it may arrive though its operator dies
