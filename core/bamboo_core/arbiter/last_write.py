"""The last write: all is done but the last checkpoint, which could not be written.

Nothing is thrown away for that. One holder of each layer stays, the other agents are released, and
the plan that writes the checkpoint is made again, after growing pauses, until it is written or the
deadline is over. Only a write that failed is tried again: a file that turned out to be torn is not.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import inf

from bamboo_core.api import texts
from bamboo_core.api.events import EventReason, Severity
from bamboo_core.arbiter import endings
from bamboo_core.arbiter_state import successors
from bamboo_core.arbiter_state.events import Send
from bamboo_core.arbiter_state.last_write import LastWrite, Rewriting
from bamboo_core.arbiter_state.state import Over, State
from bamboo_core.model.counts import counted
from bamboo_core.model.ids import AgentId
from bamboo_core.model.items import Kind
from bamboo_core.placement.capacity import is_enough
from bamboo_core.protocol.exit_codes import ExitCode
from bamboo_core.protocol.messages import BadCheckpoint, Manifest, Release

SUSPENDED_S = 300.0
"""Longest wait of a job that is to be suspended: somebody else may want its nodes."""
MOST_BYTES = 300
"""Of an error that the facts keep."""

_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
_TRIES_LEFT = 4  # the part of the time left, to a holder or to the job, for which it may wait
_LOOKS_LEFT = 4  # the part of the time left for which agents may look at the files
_LEAST_LOOK_S = 1e-3


# ---------------------------------------------------------------- what agents say


def failed(state: State, agent: AgentId, bad: BadCheckpoint) -> bool:
    """Note a write that has failed, if it is the one with which the plan ends; whether it is."""
    durable, known = state.durable, state.durable.last_write
    if durable.saving:
        return False  # training goes on without it
    if not bad.cause or bad.attempt != durable.attempt or not _is_last(state, bad.step):
        return False
    why = texts.cut(bad.cause, MOST_BYTES)
    if known is None or known.step != bad.step:
        known = LastWrite(bad.step)
    if why != known.why:
        state.out.save(last_write=known._replace(why=why))
        state.record(
            EventReason.CHECKPOINT_BAD,
            f"the last checkpoint, of step {bad.step}, is not written: {bad.cause}",
            Severity.WARNING,
            agents=agent,
            step=bad.step,
        )
    return True


def _is_last(state: State, step: int) -> bool:
    known, in_force = state.durable.last_write, state.in_force
    ends = {state.job.spec.training.steps}
    if known is not None:
        ends.add(known.step)
    if in_force is not None and in_force.plan.fence.attempt == state.durable.attempt:
        ends.add(in_force.plan.last)
    return step in ends


def sealed(state: State, manifest: Manifest) -> None:
    """A checkpoint is complete, perhaps the last one."""
    known = state.durable.last_write
    is_same = manifest.attempt == state.durable.attempt
    if known is not None and is_same and manifest.step == known.step:
        state.out.save(last_write=None)


# ---------------------------------------------------------------- time


def left_s(state: State, now: float) -> float:
    """Seconds until the deadline."""
    known, desired = state.durable.last_write, state.desired
    assert known is not None
    assert desired is not None
    waited_s, most_s = _waited_s(state, known, now), desired.last_write_s
    if known.suspended_s is None:
        return most_s - waited_s
    return min(most_s, known.suspended_s + min(SUSPENDED_S, most_s)) - waited_s


def _waited_s(state: State, known: LastWrite, now: float) -> float:
    return known.waited_s + max(0.0, now - state.rewriting.since)


def _count(state: State, known: LastWrite, now: float) -> None:
    """Keep how long the job has waited: the next leader goes on from there."""
    assert state.desired is not None
    waited_s = round(_waited_s(state, known, now), 3)
    suspended_s = None
    if state.desired.suspended:
        suspended_s = waited_s if known.suspended_s is None else known.suspended_s
    state.out.save(last_write=known._replace(waited_s=waited_s, suspended_s=suspended_s))
    state.rewriting.since = now


def expire(state: State, now: float) -> bool:
    """End the job if the deadline is over; whether it is."""
    known, desired = state.durable.last_write, state.desired
    assert desired is not None
    if known is None or isinstance(state.phase, Over):
        return False
    state.rewriting.left_s = left_s(state, now)
    if state.rewriting.since == inf:
        return False
    if not _is_wanted(state, known):
        return False  # the next plan trains
    if desired.suspended != (known.suspended_s is not None):
        _count(state, known, now)
    state.rewriting.left_s = left_s(state, now)
    if state.rewriting.left_s > 0:
        return False
    _count(state, known, now)
    endings.give_up_last_write(state)
    return True


def aim(state: State) -> bool:
    """All members have reported: a job that the user's code has failed ends with the newest step
    that any of them knows. Whether that has its checkpoint, or there is none."""
    durable, step = state.durable, newest_version(state)
    if not durable.failing:
        return False
    if durable.last_write is None or durable.last_write.step != step:
        state.out.save(last_write=LastWrite(step, "it has not been tried yet"))
    return is_written(state, step) and (durable.attempt, step) not in durable.bad


def is_written(state: State, step: int) -> bool:
    """Whether the step has a checkpoint, good or bad, or the attempt has begun there."""
    durable = state.durable
    marks = {(m.attempt, m.step) for m in durable.manifests}.union(durable.bad)
    begun = durable.manifest.step if durable.manifest is not None else 0
    return step <= begun or (durable.attempt, step) in marks


def newest_version(state: State) -> int:
    """All members have reported: the newest step that any of them has reached."""
    records = (c for report in state.reports().values() for c in report.commits)
    newest = max((c.step for c in records), default=-1)
    return max(newest, state.ledger.newest(state.durable)) + 1


def look_s(state: State, now: float) -> float:
    """For how long agents may look at the files before they seal the last checkpoint; 0: as long as
    usual. Most of the time until the deadline is for writing: a file that another node does not see
    is no reason to give the checkpoint up."""
    if state.durable.last_write is None:
        return 0.0
    return max(_LEAST_LOOK_S, left_s(state, now) / _LOOKS_LEFT)


# ---------------------------------------------------------------- another try


def is_due(state: State, now: float) -> bool:
    """All members have finished: whether to write again. Then a round has to begin."""
    known, rewriting = state.durable.last_write, state.rewriting
    assert state.in_force is not None
    if known is None or known.step != state.in_force.plan.last:
        return False
    _count(state, known, now)
    rewriting.at = now + min(_PAUSE_S * 2.0**rewriting.tries, _longest_pause_s(state, now))
    rewriting.tries += 1
    return left_s(state, now) > 0


def _longest_pause_s(state: State, now: float) -> float:
    """Tries become frequent again before the deadline, and before a holder leaves: it stays only if
    no other has copies."""
    departures, members = state.membership.departures(), state.membership.members
    going_s = min((departures[a] for a in members & departures.keys()), default=inf) - state.real_s
    least_s = min(going_s, left_s(state, now))
    return min(_LONGEST_PAUSE_S, max(_PAUSE_S, least_s / _TRIES_LEFT))


def _is_wanted(state: State, known: LastWrite) -> bool:
    """False: the job was to be suspended, and is to go on before its end."""
    assert state.desired is not None
    is_ending = state.desired.suspended or bool(state.durable.failing)
    return known.step >= state.job.spec.training.steps or is_ending


def pause(state: State, now: float) -> tuple[str, float] | None:
    """All members have reported: why they wait, and until when; None: they do not.

    If a layer has no copy of the right version, the next plan finds out what follows."""
    known = state.durable.last_write
    if known is None:
        return None
    if not _is_wanted(state, known):
        state.out.save(last_write=None)
        state.rewriting = Rewriting()
        return None
    holders = staying(state)
    if not holders:
        state.rewriting.going |= _going(state)  # else they would press for the same plan again
        return None
    _count(state, known, now)
    state.rewriting.layers = _without_file(state, known.step)
    awaited = _candidates(state, holders)  # until there are enough of them
    is_released = state.membership.members > {*holders, *awaited}
    is_early = is_pressed(state) or is_released or bool(taking_over(state, holders))
    if now >= state.rewriting.at or is_early:
        state.rewriting.going |= _going(state)
        state.rewriting.tries *= not is_early  # the plan releases agents, or copies layers
        return None
    text = f"the checkpoint of step {known.step} is not written: {known.why}"
    return text, state.rewriting.at


def _without_file(state: State, step: int) -> tuple[int, ...]:
    """Layers of which no member has written its file of this step."""
    items = (item for report in state.reports().values() for item in report.items)
    there = {item.lo for item in items if item.kind is Kind.FILE and item.step == step}
    return tuple(x for x in range(state.membership.reference().layers) if x not in there)


def is_pressed(state: State) -> bool:
    """Whether a holder has to hand its layers over, since it will leave: the plan does not wait."""
    return state.durable.last_write is not None and not _going(state) <= state.rewriting.going


def due(state: State) -> str:
    """Why to stop a try that is under way; empty: there is no reason. Nothing else may change."""
    if is_pressed(state):
        return "agents that keep the last state will go away"
    return "agents have come that take the last state over" if successors.have_come(state) else ""


def _going(state: State) -> set[AgentId]:
    return {a for a in state.membership.members if state.membership.is_departing(a)}


def taking_over(state: State, holders: Collection[AgentId]) -> list[AgentId]:
    """Members that the next plan gives the state of its holders. Empty: one of these stays, or
    there are too few others."""
    found, stages = _candidates(state, holders), state.job.spec.pipelines.stages
    return sorted(found) if is_enough(found, stages=stages, least=1) else []


def _candidates(state: State, holders: Collection[AgentId]) -> set[AgentId]:
    """Members that stay, if no holder does."""
    membership = state.membership
    if not all(membership.is_departing(agent) for agent in holders):
        return set()
    return membership.members & membership.usable()


def refuses(state: State, agent: AgentId) -> bool:
    """Whether an agent that connects has no part in the last write, and may end."""
    return is_released(state, agent) and not successors.wanted(state)


def is_released(state: State, agent: AgentId) -> bool:
    """Whether the agent has no part in the last write, or none yet."""
    membership, is_waiting = state.membership, state.durable.last_write is not None
    known = membership.agents.keys() | membership.members | membership.suspected.keys()
    return is_waiting and agent not in known


def release(state: State, agent: AgentId) -> None:
    """Let an agent end as one of a finished job."""
    state.out.after_facts(Send(agent, Release(ExitCode.RELEASED, "only the last write is left")))


def release_others(state: State) -> None:
    """A plan is in force: agents that have no part in it may end, if only the last checkpoint is
    left to write."""
    known, membership = state.durable.last_write, state.membership
    assert state.in_force is not None
    awaited = membership.usable() if successors.wanted(state) else set()
    gone = sorted(membership.agents.keys() - membership.members - awaited)
    if known is None or state.in_force.plan.target != known.step or not gone:
        return
    for agent in gone:
        release(state, agent)
        membership.agents.pop(agent)
        state.evidence.forget(agent)
        state.stalls.activities.pop(agent, None)
    text = (
        f"{counted(len(gone), 'agent')} released: only the checkpoint of step {known.step} is left"
        f" to write; one copy of each layer stays, on {', '.join(sorted(membership.members))}"
    )
    state.record(EventReason.AGENTS_RELEASED, text, agents=",".join(gone), step=known.step)


def staying(state: State) -> list[AgentId]:
    """As few members as hold every layer, of a job that has only its last checkpoint left to write.
    Agents that will leave, or that have no vote, only if no other holds a layer. Empty: it has more
    to do, or a layer has no holder."""
    known = state.durable.last_write
    if known is None:
        return []
    reports, layers = state.reports(), range(state.membership.reference().layers)
    held = {
        agent: {layer for layer, version in report.versions.items() if version == known.step}
        for agent, report in reports.items()
    }
    ranks, chosen = _ranks(state, held), list[AgentId]()
    lacking = set(layers)
    while lacking:
        able = [agent for agent in held if held[agent] & lacking]
        if not able:
            return []
        best = min(able, key=lambda a: (ranks[a][0], -len(held[a] & lacking), ranks[a]))
        chosen.append(best)
        lacking -= held[best]
    for agent in list(chosen):  # a later one may hold all that it holds
        others = set[int]().union(*(held[a] for a in chosen if a != agent))
        if others >= set(layers):
            chosen.remove(agent)
    return sorted(chosen)


def _ranks(
    state: State, held: Mapping[AgentId, Collection[int]]
) -> dict[AgentId, tuple[bool, int, AgentId]]:
    """The order in which agents stay: first those of the fullest pipeline, so that few move."""
    rows = sorted(state.durable.pipelines, key=lambda row: -sum(agent in held for agent in row))
    places = {agent: n for n, row in enumerate(rows) for agent in row if agent is not None}
    voters, membership = set(state.durable.voters), state.membership
    return {
        agent: (
            membership.is_departing(agent) or agent not in voters,
            places.get(agent, len(rows)),
            agent,
        )
        for agent in held
    }
