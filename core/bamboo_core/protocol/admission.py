"""Which agents a job can use, checked when one reports that it is ready, and of which leader an
agent's message speaks.

Terms come from the Lease alone. A message of a later term than the leader's own is a lie, or comes
to the wrong operator; it deposes nobody.
"""

from __future__ import annotations

from dataclasses import fields
from typing import NamedTuple

from bamboo_core.api import limits
from bamboo_core.api.reasons import Reason
from bamboo_core.api.spec import JobSpec
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import (
    AgentMessage,
    AgentReport,
    Disputed,
    Fingerprint,
    Finished,
    Heartbeat,
    Hello,
    Left,
    Listed,
    Progress,
    Ready,
    Suspicion,
)


class Refusal(NamedTuple):
    """Why an agent, or the whole job, cannot take part."""

    reason: Reason
    message: str


def check(spec: JobSpec, ready: Ready) -> Refusal | None:
    """Compare what the agent found with the spec; None if it fits."""
    stages, training = spec.pipelines.stages, spec.training
    if ready.layers < stages:
        text = (
            f"spec.model.factory {spec.model.factory} gives {ready.layers} layers, fewer than"
            f" spec.pipelines.stages {stages}: lower stages or give the model more layers"
        )
        return Refusal(Reason.TOO_FEW_LAYERS, text)
    if ready.training_samples < training.global_batch_size:
        text = (
            f"spec.data.factory {spec.data.factory} gives {ready.training_samples} samples, fewer"
            f" than spec.training.globalBatchSize {training.global_batch_size}: lower it or use"
            " more data"
        )
        return Refusal(Reason.DATA_TOO_SMALL, text)
    if spec.data.validation is not None and ready.validation_samples < training.micro_batch_size:
        text = (
            f"spec.data.validation.factory {spec.data.validation.factory} gives"
            f" {ready.validation_samples} samples, fewer than spec.training.microBatchSize"
            f" {training.micro_batch_size}: lower it or use more data"
        )
        return Refusal(Reason.DATA_TOO_SMALL, text)
    evals = limits.evals(spec, ready.validation_samples)
    if (count := limits.tasks(spec, evals)) > limits.MOST_TASKS:
        text = (
            f"spec.data.validation.factory gives {ready.validation_samples} samples, so a step"
            f" with validation has {count} tasks on {stages} stages; at most"
            f" {limits.MOST_TASKS} can be planned: use fewer samples, raise"
            " spec.training.microBatchSize, or lower spec.pipelines.stages"
        )
        return Refusal(Reason.DATA_TOO_LARGE, text)
    if ready.storage_error and spec.checkpoint is not None:
        text = (
            f"spec.checkpoint.uri {spec.checkpoint.uri} cannot be written: {ready.storage_error}:"
            " nothing could be saved; mount a folder there that all agents can write, with space"
            " left (spec.worker.podTemplate), and create the job again"
        )
        return Refusal(Reason.CHECKPOINT_FAILED, text)
    return None


_SAME = "all agents of a job need the same image, data and kind of device"
_REMEDY = {
    "spec": "args of model, data or optimizer have changed while the job runs; change them back, or"
    " create a new BambooJob"
}


def compare(
    agent: AgentId, found: Fingerprint, other: AgentId, wanted: Fingerprint
) -> Refusal | None:
    """Two agents of one job must run the same code with the same args on the same data, torch and
    device kind."""
    for field in fields(Fingerprint):
        mine, theirs = getattr(found, field.name), getattr(wanted, field.name)
        if mine != theirs:
            remedy = _REMEDY.get(field.name, _SAME)
            text = (
                f"{field.name} of agent {agent} is {mine!r}, of agent {other} {theirs!r}: {remedy}"
            )
            return Refusal(Reason.FINGERPRINT_MISMATCH, text)
    return None


def newest_term(message: AgentMessage) -> int:
    """The highest term in the message's fences; 0: it has none."""
    match message:
        case Heartbeat():
            return max(message.fence.term, *(s.fence.term for s in message.suspicions), 0)
        case AgentReport():
            return max(message.fence.term, message.installed.term)
        case Hello() | Progress() | Listed() | Left() | Finished() | Disputed() | Suspicion():
            return message.fence.term
        case _:
            return 0
