"""The invariants of a history while it runs, and its verdict once no event is left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from math import inf
from typing import Any

from bamboo_core.api.outcome import Outcome
from bamboo_core.api.reasons import Reason
from bamboo_core.arbiter_state.durable import Durable
from bamboo_core.arbiter_state.events import ComputePlan
from bamboo_core.arbiter_state.state import Holding
from bamboo_core.model.ids import AgentId
from bamboo_core.model.items import Item, Kind
from bamboo_core.model.pruning import LEAST_KEPT
from bamboo_core.placement.plan import layers_of
from bamboo_core.placement.zones import feasible
from bamboo_core.planning.requests import Fatal
from bamboo_core.protocol.messages import AgentReport
from bamboo_sim.protocol.checker.best import check_shown
from bamboo_sim.protocol.checker.corruption import (
    check_copies,
    check_question,
    check_told,
    check_unseen,
)
from bamboo_sim.protocol.checker.pruning import is_gone
from bamboo_sim.protocol.parts.violation import Violation
from bamboo_sim.protocol.world.node import Node
from bamboo_sim.protocol.world.state import World


def check_fatal(world: World, wanted: ComputePlan, fatal: Fatal) -> None:
    """No layer may be declared lost while a reporting agent holds a usable version of it."""
    if not world.losses and not world.released:  # a deposed operator sees how those end
        raise Violation(f"layers {fatal.layers} are declared lost, but no agent died")
    # an agent on short notice does not vote, so a commit may not wait for it
    lasting = wanted.request.reports.keys() - wanted.request.short_notice
    is_known = wanted.request.has_voter
    for agent in sorted(lasting) if is_known and not world.has_cuts else ():
        node = world.nodes.get(agent)
        kept = (
            node.worker.settled & set(fatal.layers) & node.executor.versions.keys() if node else ()
        )
        if kept:
            raise Violation(f"layers {sorted(kept)} are declared lost, but {agent} keeps them")
    # without a voter's report, the number of repeated steps is unknown: a new attempt
    if is_known and any(m.step == fatal.committed + 1 for m in wanted.request.manifests):
        raise Violation(f"layers {fatal.layers} are declared lost, but a file has them")
    for layer in fatal.layers:
        _check_lost(wanted, layer, fatal.committed)


def _check_lost(wanted: ComputePlan, layer: int, newest: int) -> None:
    """No reported version of the layer may be usable for the newest commit."""
    reports = wanted.request.reports
    for agent, report in reports.items():
        version = report.versions.get(layer)
        if version is None:
            continue
        steps = range(version, newest + 1)
        if all(_has_gradient(reports, layer, step) for step in steps):
            raise Violation(f"layer {layer} is declared lost, but {agent} holds it")


def _has_gradient(reports: Mapping[AgentId, AgentReport], layer: int, step: int) -> bool:
    known = any(c.step == step for r in reports.values() for c in r.commits)
    return known and is_whole((i for r in reports.values() for i in r.items), layer, step)


def is_whole(items: Iterable[Item], layer: int, step: int) -> bool:
    """Whether these are all slices of the layer's reduced gradient, among others."""
    slices: dict[tuple[int, int, int], set[int]] = {}
    for i in items:
        if i.kind is Kind.RED and i.step == step and i.lo <= layer < i.hi:
            slices.setdefault((i.lo, i.hi, i.slices), set()).add(i.part)
    return any(len(found) == count for (_, _, count), found in slices.items())


def versions(world: World, attempt: int, step: int) -> tuple[Any, ...]:
    """The versions of all layers in an attempt, at the beginning of a step."""
    return tuple(_expected(world, attempt)[0][step])


def check_values(world: World) -> None:
    """Each value in a manifest is that of its step, unless a device has computed wrong bits."""
    if world.job.best is None or world.spoiled or world.altered:
        return
    for (attempt, step), value in world.sealed.scores.items():
        if value not in (None, _expected(world, attempt)[1][step].validation_loss):
            raise Violation(f"the manifest of step {step}, attempt {attempt} has another value")


def _expected(world: World, attempt: int | None = None) -> tuple[Any, Any]:
    """Versions and commit records, salted by the attempt whose result of each step counts.

    attempt: the expectation as of that attempt (None: the newest).
    """
    job, operators = world.job, world.operators
    salts = [0] * job.steps
    for fork in operators.durable.forks:
        if attempt is not None and fork.attempt > attempt:
            break
        for step in range(fork.step, job.steps):
            salts[step] = fork.attempt if job.salted else 0
    assert operators.batch is not None
    return job.expected(operators.batch, tuple(salts))


def check_commit(world: World, node: Node, record: Any) -> None:
    """The commit record is right, and a superseded plan commits at most once more."""
    fence, durable = node.executor.fence, world.operators.durable
    if fence.attempt != durable.attempt:
        return
    check_question(world, node, record.step)
    check_copies(world, node, record.step)
    if record.step < world.job.begins_at:
        raise Violation(f"step {record.step} is computed, before what the job begins with")
    right = _expected(world)[1][record.step]
    if record.loss != right.loss and not world.spoiled:
        check_unseen(world, node, record.step)
    if world.job.evals:
        _check_validation(world, node, record, right)
    if record.step >= world.job.steps:
        return
    world.newest = max(world.newest, (fence.attempt, record.step))
    world.computed |= {fence.attempt}
    decided = durable.plan
    if fence < decided and fence.attempt == decided.attempt:
        world.orphans[fence] += 1
        if world.orphans[fence] > 1:
            raise Violation(f"plan {fence} keeps committing after {decided}")


def _check_validation(world: World, node: Node, record: Any, right: Any) -> None:
    """The record has the right validation loss, if one is due and training goes on. It may be wrong
    only where layers are: nobody computes it twice."""
    found, directive = record.validation_loss, node.executor.directive
    is_suspending = directive is not None and directive.last < world.job.steps
    is_due = world.job.is_validated(record.step) and not is_suspending
    are_layers_wrong = world.spoiled or node.executor.fence.attempt in world.altered.values()
    is_right = found == right.validation_loss or (found is not None and bool(are_layers_wrong))
    if not is_right and (is_due or found is not None):
        raise Violation(f"{node.name} validates version {record.step} as {found}")


def check_plan(world: World, before: Durable) -> None:
    """Within an attempt, committed steps are not repeated.

    Exceptions: the newest step, if all agents that knew its commit are dead; and, if no voter is
    left, steps that leaving agents and learners do not know.
    """
    facts = world.operators.durable
    attempt, newest = world.newest
    if facts.plan == before.plan or not facts.plan.attempt == facts.attempt == attempt:
        return
    if facts.target >= newest:
        return
    states = [n for n in world.nodes.values() if n.executor.versions]
    if not states or not world.nodes.keys().isdisjoint(before.voters):
        raise Violation(
            f"plan {facts.plan} silently goes back to step {facts.target}: step {newest} of its"
            " attempt is committed"
        )
    world.newest = (attempt, facts.target - 1)


def check_kinds(world: World) -> None:
    """No plan gives seats to agents on several kinds of processor, and none gives them to another
    kind than the plan before unless the newest event of a change names it."""
    plan = world.operators.plan
    live = () if plan is None else sorted(plan.live & world.nodes.keys())
    kinds = {world.nodes[agent].worker.products: agent for agent in live}
    if len(kinds) > 1:
        raise Violation(f"one plan has agents on several kinds of processor: {kinds}")
    for kind in kinds:
        if world.kind not in ("", kind) and world.told_kind != kind:
            raise Violation(f"processors change from {world.kind} to {kind}, and no event tells it")
        world.kind = kind


def judge(world: World) -> str:
    """The outcome of a history without further events. A Violation if it must not end so."""
    _check_stops(world)
    ended = world.operators.arbiter.durable
    if ended.outcome is not None:
        if world.spoiled or ended.attempt in world.altered.values():
            check_told(world, _check_weights)
            return "unseen"
        _check_files(world)
        if ended.outcome is Outcome.SUSPENDED and world.operators.goal.suspended:
            return "suspended"
        if ended.reason == Reason.CHECKPOINT_FAILED and world.has_storage_failed:
            return "unsaved"
        if ended.reason == Reason.USER_CODE_FAILED and world.bad_code is not None:
            return "failed by its code"
        if ended.outcome is not Outcome.COMPLETE:
            raise Violation(f"the job ends as {ended.outcome}: {ended.message}")
        _check_weights(world)
        _check_last_checkpoint(world)
        if world.has_given_up:
            return "restored by mistake"
        return "restored" if world.operators.durable.attempt else "complete"
    # the last write waits for no agents, and has a deadline, if there is anything to write
    is_writing = ended.last_write is not None and bool(world.nodes)
    is_short = is_too_few(world) or _waits_for_suspects(world) or _waits_for_a_link(world)
    if not is_writing and is_short:
        return "waiting"
    status = world.operators.arbiter.status()
    if status.unreachable and is_gone(world):
        return "waits for files"
    raise Violation(f"deadlock: {status.phase} {status.detail}; {positions(world)}")


def _check_stops(world: World) -> None:
    """Training stops only for a cause: each fault may cost two plans, and each refused write of the
    last checkpoint one.

    Not checked where live agents were suspected by mistake: they are asked again, with back-off.
    """
    epochs = world.arbiter.fence.epoch
    if not world.was_misled and epochs > 2 * world.causes + world.refused + 3:
        raise Violation(f"{epochs} epochs after {world.causes} faults")


def _check_files(world: World) -> None:
    """Every sealed checkpoint has the right bits, unless no plan can use it."""
    for (attempt, step), files in world.sealed.items():
        forks = world.operators.durable.forks
        is_left = any(f.attempt > attempt and step > f.step for f in forks)
        if is_left and (world.altered or world.flips):
            continue
        if files is not None and files != tuple(_expected(world, attempt)[0][step]):
            raise Violation(f"the checkpoint of step {step}, attempt {attempt} is wrong")


def _check_last_checkpoint(world: World) -> None:
    """The job ends with its last checkpoint, and knows all that its live agents have sealed. The
    best one that it shows is there."""
    durable, plan, steps = world.operators.durable, world.operators.plan, world.job.steps
    if not world.job.save_every or plan is None:
        return
    if (durable.attempt, steps) not in world.sealed:
        raise Violation("the job has ended without its last checkpoint")
    check_shown(world)
    known = {(m.attempt, m.step) for m in durable.manifests} | set(durable.bad)
    live = [] if world.has_cuts else [n for a, n in world.nodes.items() if a in plan.live]
    sealed = {mark for node in live for mark in node.worker.sealings}
    newest = sorted(mark for mark in sealed if mark[0] == durable.attempt)[-LEAST_KEPT:]
    if not known.issuperset(newest):
        raise Violation(f"checkpoints {newest} are sealed, but the job knows only {sorted(known)}")


def is_too_few(world: World) -> bool:
    """Whether the operator reaches too few agents for a plan, by its own rules."""
    operators = world.operators
    deaf = world.noticed | world.network.frozen
    usable = [a for a in world.nodes if world.network.reaches(a) and a not in deaf]
    alive = len(usable)
    if world.has_expelled:  # expelled agents are replaced, not asked again
        alive = min(alive, len(operators.arbiter.status().members))
    stages, durable = operators.stages, operators.durable
    is_new = durable.plan.attempt != durable.attempt or not durable.pipelines
    if is_new and world.job.zones:
        zones = Counter(world.job.zone(a) for a in usable)
        return not feasible(zones, stages=stages, pipelines=1)
    return alive < stages if is_new else 2 * alive < stages


def _waits_for_suspects(world: World) -> bool:
    """Whether the job waits, with back-off, to ask agents again that it suspected by mistake."""
    state = world.arbiter.state
    is_given_up = any(s.is_connected for s in state.membership.suspected.values())
    will_ask = isinstance(state.phase, Holding) and world.now < state.deadlines.retry_at < inf
    return world.was_misled and is_given_up and will_ask


def _waits_for_a_link(world: World) -> bool:
    """Whether the job says that it waits for what crawls: no plan can do without it."""
    view = world.operators.running[world.operators.leader].leadership.view()
    return bool(world.network.crawling) and bool(view.stall)


def positions(world: World) -> str:
    return "; ".join(
        f"{a} {n.executor.fence} step {n.executor.step} at {n.executor.current}"
        for a, n in sorted(world.nodes.items())
    )


def _check_weights(world: World) -> None:
    """Every live agent holds the layers that the last plan assigns to it, with the right bits."""
    plan, steps = world.operators.plan, world.job.steps
    assert plan is not None
    right = _expected(world)[0][steps]
    for agent, ranges in plan.wants.items():
        node = world.nodes.get(agent)
        if node is None:
            continue
        for layer in layers_of(ranges):
            version = node.executor.versions.get(layer)
            if version != steps:
                raise Violation(f"{agent} ends with version {version} of layer {layer}")
            if node.worker.backend.layers[layer] != right[layer]:
                raise Violation(f"{agent}: layer {layer} has wrong weights")
