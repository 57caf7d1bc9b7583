"""What operators and supervisors claim must be so: losses, stalls, what a job waits for."""

from __future__ import annotations

from itertools import product

from bamboo_core.api.events import EventFact, StallCause
from bamboo_core.arbiter_state.durable import eligible
from bamboo_core.arbiter_state.events import ArbiterPhase, ComputePlan, Record
from bamboo_core.model.ids import AgentId
from bamboo_core.placement.plan import layers_of
from bamboo_sim.protocol.checker.corruption import is_lasting
from bamboo_sim.protocol.checker.verdict import is_too_few, positions
from bamboo_sim.protocol.control.operator import Operator
from bamboo_sim.protocol.parts.network import STORE
from bamboo_sim.protocol.parts.violation import Violation
from bamboo_sim.protocol.world.node import Node
from bamboo_sim.protocol.world.state import World

_UNREACHABLE_S, _SLACK_S = 3.0, 1.0
_TRICKLE_S, _SHARED_S = 40.0, 130.0
_FEW = 2


def check_said(world: World) -> None:
    """A job that stands still says what it waits for, unless nobody is there to say it."""
    leader = world.operators.leader
    view = world.operators.running[leader].leadership.view()
    is_mute = any(("machine", x) in world.still for x in (STORE, leader))
    is_said = view.detail or view.stall or view.unreachable
    if not is_mute and not is_said and not is_too_few(world):
        raise Violation(f"stands still without a word; {positions(world)}")


def check_silence(world: World) -> None:
    """An agent that died unseen is lost in time, whatever pace of heartbeats was told before or
    after: after 3 s, and twice as much later as heartbeats are rarer than usual.

    Only while the job runs: else its silence has been found, and it may be asked once more.
    """
    if not world.beat_s or world.still or world.network.frozen or world.is_raced:
        return
    leader = world.operators.running[world.operators.leader]
    if leader.arbiter.state.phase_name is not ArbiterPhase.RUNNING:
        return
    usual_s = world.job.arbiter_job.timing.heartbeat_s
    due = world.silent_since + _UNREACHABLE_S + 2 * (world.beat_s - usual_s) + _SLACK_S
    members = leader.arbiter.state.membership.members
    late = [a for a, operator, _ in world.silent if operator == leader.name and a in members]
    if late and world.now > due:
        raise Violation(f"{sorted(late)} have been silent since {world.silent_since:g} s")


def check_trickle(world: World) -> None:
    """The job goes on without links that pass hardly anything, if it can: within 40 s. If it has to
    do without more than two ends before it commits, it may wait for 130 s, since the links may
    share what is slow. If it cannot, it says so.

    Only while everybody else is well: else a plan may take long.
    """
    if not world.network.crawling:
        world.crawls = {}
        return
    leader = world.operators.running[world.operators.leader]
    state = leader.arbiter.state
    is_judged = not (world.is_misled or world.still or world.network.frozen or world.is_raced)
    crawls = _crawls(world) if is_judged and state.phase_name is ArbiterPhase.RUNNING else set()
    fence = state.fence  # a new plan has its own time
    world.crawls = {(*link, fence): world.crawls.get((*link, fence), world.now) for link in crawls}
    gone = state.stalls.tried - state.membership.members
    ends = len({frozenset(link) for link in crawls}) + len(gone)
    bound_s = _TRICKLE_S if ends <= _FEW else _SHARED_S
    late = sorted(key[:2] for key, since in world.crawls.items() if world.now > since + bound_s)
    if not late:
        return
    if not leader.leadership.view().stall:
        raise Violation(f"{late} trickle, and nobody says so; {positions(world)}")
    if any(_are_spare(world, set(ends)) for ends in product(*late)):
        raise Violation(f"the job waits for {late}, but could do without; {positions(world)}")


def _crawls(world: World) -> set[tuple[AgentId, AgentId]]:
    """Links of members that trickle, for what crawls on which the receiver waits."""
    state = world.operators.arbiter.state
    members = state.membership.members
    found = set()
    for name, node in world.nodes.items():
        peer = node.doing().peer
        ends = {name, peer}
        if peer is not None and ends <= members and world.network.crawls(peer, name):
            found.add((peer, name))
    return found


def _are_spare(world: World, ends: set[AgentId]) -> bool:
    """Whether other members hold all that these agents have to hold by their plan."""
    plan = world.plan
    members = world.operators.arbiter.state.membership.members
    if plan is None:
        return False
    held = {x for a in members - ends for x in layers_of(plan.wants.get(a, ()))}
    return held.issuperset(x for a in ends for x in layers_of(plan.wants.get(a, ())))


def check_loss(world: World, operator: Operator, record: Record) -> None:
    """No agent is given up that lives, can be reached, and has not been made to look dead."""
    # a link that breaks again, or a message lost again, costs an agent its place
    if world.is_misled or world.is_silent or world.resets > 1:
        return
    is_disputed = is_lasting(world) and world.differing.issuperset(record.agents)
    if is_disputed and "differ in the forward" in record.message:
        world.noticed |= {*record.agents}  # one is wrong, and sometimes nobody knows which
        return
    for name in record.agents:
        is_well = name in world.nodes and name not in world.noticed
        is_well = is_well and name not in {*world.flips, *world.altered}
        is_well = is_well and name not in world.sealed.misreaders
        if is_well and world.nodes[name].worker.has_halted:
            is_well = not _are_spare(world, {name})
        if is_well and world.kind not in ("", world.nodes[name].worker.products):
            continue  # it may go once agents on the job's kind of processor are there
        if is_well and not _is_reset(world, operator, name):
            raise Violation(f"a healthy agent is given up: {record.message}")


def _is_reset(world: World, operator: Operator, name: AgentId) -> bool:
    """Whether the agent's session and its link to a peer have both been reset, and it has not
    opened another session. The peer's word about the link may come first: the same evidence as of
    a death, on which the arbiter acts at once. The agent comes back as a newcomer."""
    if world.plan is None or name in operator.sessions:
        return False
    broken = world.network.broken.items()
    return any(peer == name and fence >= world.plan.fence for (_, peer), fence in broken)


def check_dismissed(world: World, operator: Operator, agent: AgentId) -> None:
    """No live agent is sent away to which the plan in force gives a seat."""
    arbiter, plan = operator.arbiter, world.plan
    is_ours = plan is not None and arbiter.fence == plan.fence and not world.is_misled
    is_running = arbiter.state.phase_name is ArbiterPhase.RUNNING
    if is_ours and is_running and plan is not None and agent in plan.live and agent in world.nodes:
        raise Violation(f"{agent} is sent away, but {plan.fence} gives it a seat")


def check_reports(wanted: ComputePlan) -> None:
    """A plan is made from reports that answer its own STOP."""
    fence = wanted.request.fence
    for agent, report in wanted.request.reports.items():
        if report.fence != fence:
            raise Violation(f"{fence} is planned from a report of {agent} in {report.fence}")


def check_stall(world: World, record: Record) -> None:
    """Agents wait in vain only where something was lost in silence: else it is our own fault. They
    may wait for a slow storage, or for files that are away or were deleted."""
    is_late = world.is_storage_slow or world.are_files_away or _waits_for_absent(world)
    if record.facts.get(EventFact.CAUSE) == StallCause.STORAGE and is_late:
        return
    if not (world.is_misled or world.is_silent):
        raise Violation(f"a deadlock of our own: {record.message}; {positions(world)}")


def _waits_for_absent(world: World) -> bool:
    """Whether an agent waits for a checkpoint that is not there."""
    seen = {*world.sealed.seen()}
    workers = (node.worker for node in world.nodes.values() if node.worker.is_blocked)
    return any((w.blocked.attempt, w.blocked.step) not in seen for w in workers if w.blocked)


def check_killed_worker(world: World, node: Node) -> None:
    """A supervisor kills its worker only if that stands still."""
    if node.backlog is None and not world.is_raced:
        raise Violation(f"the supervisor of {node.name} kills a worker that lives")


def check_listed(world: World, name: AgentId) -> None:
    """Before a restore, files that no facts name are looked for, if an agent can do that."""
    state = world.operators.running[name].arbiter.state
    can_list = not world.nodes.keys().isdisjoint(state.membership.reachable())
    is_up = not (world.is_storage_slow or world.are_files_away) and _sees_named(world, name)
    if can_list and is_up and not state.listing.is_here and world.sealed and not world.is_misled:
        raise Violation("restored before the checkpoints were listed")


def _sees_named(world: World, name: AgentId) -> bool:
    """Whether a list has what the facts name, or something newer. If it has not, it counts as made
    by an agent that does not see the folder, and is no answer (ADR 45). That happens if the facts
    name what was deleted after a seal of which nobody lives to tell, and the newer ones are wrong.
    """
    found, facts = world.sealed, world.operators.running[name].arbiter.durable
    marks = [(m.attempt, m.step) for m in eligible(facts)]
    named = [mark for mark in marks if mark not in found or found[mark] is not None]
    whole = [mark for mark in found.seen() if found[mark] is not None]
    return not named or any(step >= named[-1][1] for _, step in whole)
