"""Messages to each member of a plan: its directive, then its continuation."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from operator import itemgetter

from bamboo_core.model.ids import AgentId, Range
from bamboo_core.model.program import Messages, Program, parts_of, single
from bamboo_core.placement.plan import Plan
from bamboo_core.planning.requests import Participant
from bamboo_core.protocol.messages import Continuation, Directive, Manifest, Peer, Question

Programs = dict[AgentId, Program]

_PEER = itemgetter(6)  # of an instruction
_WATCHED = 2  # neighbors on each side whose liveness an agent watches


def hash_of(plan: Plan) -> str:
    """A digest of the plan's content, including its fence."""
    return hashlib.sha256(repr(plan).encode()).hexdigest()


def directives(
    plan: Plan,
    resume: Programs,
    *,
    participants: Mapping[AgentId, Participant],
    manifest: Manifest | None,
    lanes: Programs,
    lane_limit: int,
    compares: bool,
    hosts_ahead: bool,
    hosted: Mapping[AgentId, tuple[Range, ...]],
    question: Question | None,
) -> dict[AgentId, Directive]:
    """The first part of the plan for every member.

    manifest: the checkpoint that LOAD reads; lane_limit: most forwards computed ahead to keep;
    compares: whether those are compared with the owners'; hosts_ahead: whether host memory keeps
    them; hosted: layers in host memory;
    question: what else is compared.
    """
    peers, digest = _peers(plan, participants, resume), hash_of(plan)
    return {
        agent: Directive(
            fence=plan.fence,
            target=plan.target,
            last=plan.last,
            resume=resume[agent],
            wanted=plan.wants.get(agent) or plan.learners.get(agent, ()),
            batch=plan.batch,
            coordinator=plan.coordinator,
            voters=plan.live,
            peers=peers[agent],
            key=participants[agent].key,
            manifest=manifest,
            plan_hash=digest,
            has_continuation=plan.target < plan.last,
            lane=lanes.get(agent, ()),
            lane_limit=lane_limit,
            compares=compares,
            hosts_ahead=hosts_ahead,
            hosted=hosted.get(agent, ()),
            question=question,
            node=participants[agent].node,
        )
        for agent in plan.members
    }


def continuations(
    plan: Plan,
    first: Mapping[AgentId, Directive],
    steady: Programs,
    final: Programs,
    *,
    participants: Mapping[AgentId, Participant],
    lanes: Programs,
) -> dict[AgentId, Continuation]:
    """The second part of the plan for every member."""
    resume = {agent: directive.resume for agent, directive in first.items()}
    peers = _peers(plan, participants, resume, steady, final)
    return {
        agent: Continuation(
            fence=plan.fence,
            plan_hash=directive.plan_hash,
            steady=steady.get(agent, ()),
            final=final.get(agent, ()),
            peers=peers[agent],
            lane=lanes.get(agent, ()),
        )
        for agent, directive in first.items()
    }


def _peers(
    plan: Plan, participants: Mapping[AgentId, Participant], *parts: Programs
) -> dict[AgentId, tuple[Peer, ...]]:
    """Agent -> the agents that its programs talk to, and the agents whose liveness it watches.

    Both ends of a liveness socket must know of it, so agents watch neighbors on both sides.
    """
    members = plan.members
    ordered = sorted(members)
    known = [_peer(a, participants[a]) for a in ordered]
    place = {a: at for at, a in enumerate(ordered)}  # to sort numbers is faster
    out: dict[AgentId, tuple[Peer, ...]] = {}
    for i, agent in enumerate(members):
        found = set[AgentId]().union(*(_named(programs.get(agent, ())) for programs in parts))
        found |= {members[(i + j) % len(members)] for j in range(-_WATCHED, _WATCHED + 1)}
        found -= {agent, AgentId("")}
        out[agent] = tuple([known[at] for at in sorted(map(place.__getitem__, found))])
    return out


def _named(program: Program) -> set[AgentId]:
    many = (x.peers for x in parts_of(program) if isinstance(x, Messages))
    return set(map(_PEER, single(program))).union(*many)


def _peer(agent: AgentId, found: Participant) -> Peer:
    addresses = found.data_address, found.liveness_address
    return Peer(agent, *addresses, found.key, found.zone, found.node)
