"""Snapshots of an arbiter for status, events and metrics. They change nothing."""

from __future__ import annotations

from math import inf

from bamboo_core.api.progress import Unwritten
from bamboo_core.arbiter_state import successors
from bamboo_core.arbiter_state.durable import eligible, shown_best
from bamboo_core.arbiter_state.events import ArbiterStatus, Glance
from bamboo_core.arbiter_state.state import Collecting, Over, State
from bamboo_core.model.ids import Fence
from bamboo_core.placement.plan import layers_of

_LONG_S = 20.0  # an instruction that keeps a stop waiting is told from then on


def glance(state: State) -> Glance:
    """The part of the snapshot of which users hear soon."""
    membership, durable = state.membership, state.durable
    return Glance(
        phase=state.phase_name,
        detail=state.phase.detail,
        fence=state.fence,
        members=frozenset(membership.members),
        connected=membership.connected(),
        has_ready=membership.has_ready(),
        progress=state.ledger.progress,
        checkpoint=next(reversed(eligible(durable)), None),
        stall=_stall(state),
        unreachable=_waits_for(state),
        slow=frozenset(membership.slow & membership.members),
        outcome=durable.outcome,
    )


def status(state: State) -> ArbiterStatus:
    """A snapshot for status, events and metrics."""
    membership, durable = state.membership, state.durable
    plan = state.in_force.plan if state.in_force is not None else None
    return ArbiterStatus(
        phase=state.phase_name,
        detail=state.phase.detail,
        fence=state.fence,
        plan=plan,
        members=tuple(sorted(membership.members)),
        connected=tuple(sorted(membership.connected())),
        ready=membership.ready(),
        standby=tuple(sorted(membership.standby())),
        leaving=plan.leaving if plan is not None else (),
        progress=state.ledger.progress,
        checkpoint=next(reversed(eligible(durable)), None),
        best=shown_best(durable, state.job.spec.best),
        copies=_copies(state),
        route=membership.route(state.job.spec),
        network=state.wire.network(),
        stall="; ".join(filter(None, (_stall(state), _late(state)))),
        unreachable=_waits_for(state),
        stalls=dict(state.stalls.counts),
        slow=tuple(sorted(membership.slow & membership.members)),
        mode=durable.mode,
        verdict=state.protection.verdict,
        shortage=state.in_force.shortage if state.in_force is not None else "",
        sharing=state.in_force.sharing if state.in_force is not None else None,
        unwritten=_unwritten(state),
        outcome=durable.outcome,
        reason=durable.reason,
        message=durable.message,
    )


def _unwritten(state: State) -> Unwritten | None:
    """The last checkpoint, if it is still to be written, and for how long that is tried."""
    known = state.durable.last_write
    if known is None:
        return None
    left_s = state.rewriting.left_s
    if left_s == inf:  # a new leader has not heard yet what is wanted
        left_s = state.job.spec.run_policy.last_write_deadline_s - known.waited_s
    layers, wanted = state.rewriting.layers, successors.wanted(state)
    return Unwritten(
        known.step,
        known.why,
        max(0.0, left_s),
        layers=layers,
        successors=wanted,
        failing=state.durable.failing,
    )


def _stall(state: State) -> str:
    """All that holds up the training; empty: nothing."""
    return "; ".join(filter(None, (state.stalls.text, *state.stalls.told.values())))


def _late(state: State) -> str:
    """The member for which a stop waits longest, and its instruction; empty: none takes long. It
    looks at every agent, so it is no part of a glance, which follows every event."""
    phase = state.phase
    if not isinstance(phase, Collecting):
        return ""
    known, members = state.stalls.activities, state.membership.members
    late = [a for a, x in known.items() if x.age_s >= _LONG_S and a not in phase.reports]
    agent = max(sorted(members.intersection(late)), key=lambda a: known[a].age_s, default=None)
    if agent is None:
        return ""
    found = known[agent]
    return (
        f"the stop waits for {found.instruction or found.kind} on {agent}, which has taken more"
        f" than {_LONG_S:.0f} s; at most {found.limit_s:.0f} s are expected"
    )


def _copies(state: State) -> dict[int, int]:
    """layer -> live agents that hold it by plan."""
    in_force = state.in_force
    if in_force is None or isinstance(state.phase, Over):
        return {}
    count = dict.fromkeys(range(in_force.plan.layers), 0)
    for agent, ranges in in_force.plan.wants.items():
        if agent in state.membership.members:
            for layer in layers_of(ranges):
                count[layer] += 1
    return count


def _waits_for(state: State) -> str:
    """Why a checkpoint that is needed cannot be read, and what to do; empty: none is needed, or it
    can be read."""
    findings, members = state.findings, state.membership.members
    if isinstance(state.phase, Over):
        return ""
    found = [f"{a}: {text}" for a, text in sorted(findings.unreachable.items()) if a in members]
    found += [finding.text for _, finding in sorted(findings.found.items())]
    if not found:
        return ""
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    name, checkpoint = state.job.name.rpartition("/")[2], state.job.spec.checkpoint
    otherwise = f"go back on purpose: bamboo restore {name} --from-step N|start"
    if checkpoint is not None and checkpoint.from_ is not None and state.durable.plan == Fence():
        otherwise = "create a new BambooJob with another checkpoint in spec.checkpoint.from"
    return (
        f"a checkpoint cannot be read, so the job waits: {found[0]}{more}; make the files reachable"
        f" on every node, or {otherwise}"
    )
