"""What members report while they train: committed steps, sealed and bad checkpoints, the end."""

from __future__ import annotations

from bamboo_core.api.events import EventReason, Severity
from bamboo_core.arbiter.durable import with_manifest
from bamboo_core.arbiter.rounds import begin, resumed
from bamboo_core.arbiter.state import InForce, Running, State
from bamboo_core.model.ids import AgentId
from bamboo_core.model.program import Op
from bamboo_core.protocol.messages import BadCheckpoint, Finished, Progress, Sealed


def progressed(state: State, agent: AgentId, progress: Progress, now: float) -> None:
    """A step has been committed."""
    in_force, step = state.in_force, progress.commit.step
    if state.membership.agents[agent].attempt != state.durable.attempt:
        return  # it was out of reach when the attempt ended
    if in_force is not None and agent in in_force.plan.learners:
        newest = max(in_force.plan.target, state.ledger.progress.committed)
        if step >= newest:
            in_force.caught_up.add(agent)
    if state.ledger.learn(progress, now):
        state.evidence.settle()
        if in_force is not None and step >= in_force.plan.target:
            state.is_loading = False
            resumed(state, step, now)


def finished(state: State, agent: AgentId, message: Finished) -> None:
    """The agent's last program has run and its files are safe."""
    if isinstance(state.phase, Running) and message.fence == state.fence:
        state.phase.finished.add(agent)


def sealed(state: State, message: Sealed) -> None:
    """A checkpoint is complete."""
    manifest, durable = message.manifest, state.durable
    if manifest.attempt != durable.attempt:
        return
    known, bad = with_manifest(durable.manifests, manifest), durable.bad
    if state.in_force is not None and _writes_again(state.in_force, manifest.step):
        bad = tuple(mark for mark in bad if mark != (manifest.attempt, manifest.step))
    if (known, bad) != (durable.manifests, durable.bad):
        state.out.save(manifests=known, bad=bad)
        text = f"checkpoint of step {manifest.step} is complete: {manifest.path}"
        state.record(EventReason.CHECKPOINT_SEALED, text, step=manifest.step)


def bad_checkpoint(state: State, agent: AgentId, bad: BadCheckpoint, now: float) -> None:
    """The checkpoint is not read any more. Whether a layer is lost with it is for the next plan to
    find out, since what was read before is still held."""
    mark = (bad.attempt, bad.step)
    text = f"checkpoint of step {bad.step} cannot be used: {bad.message}"
    if mark not in state.durable.bad:
        state.out.save(bad=(*state.durable.bad, mark))
        state.record(
            EventReason.CHECKPOINT_BAD, text, Severity.WARNING, agents=agent, step=bad.step
        )
    if isinstance(state.phase, Running):
        assert state.in_force is not None
        if _loads_from(state.in_force, *mark):
            begin(state, text, now)


def _loads_from(in_force: InForce, attempt: int, step: int) -> bool:
    """Whether some agent is told to read layers from this checkpoint."""
    return any(
        d.manifest is not None
        and (d.manifest.attempt, d.manifest.step) == (attempt, step)
        and any(x.op is Op.LOAD for x in d.resume)
        for d in in_force.directives.values()
    )


def _writes_again(in_force: InForce, step: int) -> bool:
    """Whether the plan in force writes every layer of this step's checkpoint again."""
    if in_force.plan.target != step:
        return False
    saves = [i for d in in_force.directives.values() for i in d.resume if i.op is Op.SAVE]
    layers = {x for i in saves for x in range(i.lo, i.hi)}
    return layers == set(range(in_force.plan.layers))
