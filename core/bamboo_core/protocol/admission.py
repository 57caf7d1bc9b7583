"""Which agents a job can use, checked when one reports that it is ready, and of which leader an
agent's message speaks.

Terms come from the Lease alone. A message of a later term than the leader's own is a lie, or comes
to the wrong operator; it deposes nobody.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from bamboo_core.api import limits
from bamboo_core.api.reasons import Reason
from bamboo_core.api.spec import JobSpec
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import (
    LANGUAGE,
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
    if any(tie.layers[-1] >= ready.layers for tie in ready.ties if tie.layers):
        text = (
            f"spec.model.factory {spec.model.factory} gives {ready.layers} layers, and ties with"
            f" others: {[list(tie.layers) for tie in ready.ties]}"
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
        uri, remedy = spec.checkpoint.uri, "then create the job again"
        if uri.startswith("file:"):
            remedy = (
                "mount a folder there that all agents can write, with space left"
                " (spec.worker.podTemplate), and create the job again"
            )
        text = (
            f"spec.checkpoint.uri {uri} cannot be written: {ready.storage_error}: nothing could be"
            f" saved; {remedy}"
        )
        return Refusal(Reason.CHECKPOINT_FAILED, text)
    return None


def foreign(hello: Hello) -> str:
    """Why the agent would not understand the operator, and what to do; empty: it does."""
    if hello.language == LANGUAGE:
        return ""
    text = f"agent {hello.agent} speaks language {hello.language} of programs, this operator"
    if hello.language < LANGUAGE:
        return (
            f"{text} {LANGUAGE}: rebuild the image that spec.worker.image names with the"
            " bamboo-train of the operator's version"
        )
    return f"{text} {LANGUAGE}: upgrade the chart to the version of the agents' bamboo-train"


ONE_KIND = (
    "use a node pool of one kind of processor, or name one kind by a nodeSelector in"
    " spec.worker.podTemplate"
)
"""What keeps a job on one kind of processor."""
_REMEDIES = {
    "spec": "args of model, data or optimizer have changed while the job runs; change them back, or"
    " create a new BambooJob",
    "code": "the files of the factories' packages differ: name the image in spec.worker.image by"
    " its digest, and mount no code that changes",
    "torch": "the versions differ: name the image in spec.worker.image by its digest",
    "device": f"other kinds of processor compute other bits; {ONE_KIND}",
    "products": "the same sums give other bits, so their processors or the libraries for them"
    f" differ; {ONE_KIND}",
    "threads": "sums depend on the number of threads: set the variable BAMBOO_THREADS in"
    " spec.worker.env for all, or for none",
    "data": "the data sets differ in length or samples: every agent must read the same files, which"
    " do not change, and the data factory must not depend on its process",
    "samples": "samples differ: every agent must read the same files in the same order (sort what a"
    " folder lists), and the data factory must not depend on its process",
    "weights": "the layers' first weights differ: factories must draw from torch's, numpy's or"
    " random's generators only, which are seeded by spec.seed, not from a generator that is seeded"
    " by the time, the process or the system; and files with weights must be the same on all nodes",
    "outputs": "the layers' first outputs or gradients differ although weights and products are"
    " equal: look for files that differ on the nodes, for environment variables such as those of"
    " MKL, cuBLAS or cuDNN, for other versions of the libraries that the layers call, and for"
    " layers that keep state outside of torch's generators",
}
"""Property of the fingerprint -> what to change if it differs, in the order of comparison: what
makes others differ comes first."""
DIGESTS = ("weights", "outputs", "products", "samples")
"""Properties of which an empty value equals any: agents of an older version do not know them."""
_OF_DEVICE = ("device", "products")
_LONGEST_VALUE = 32
_SHOWN = 12


def compare(
    agent: AgentId, found: Fingerprint, other: AgentId, wanted: Fingerprint
) -> Refusal | None:
    """Two agents of one job must compute the same bits; None if they do, as far as is known."""
    for name, remedy in _REMEDIES.items():
        mine, theirs = getattr(found, name), getattr(wanted, name)
        if not _differs(name, mine, theirs):
            continue
        is_device = name in _OF_DEVICE
        kinds = (f" ({found.device})", f" ({wanted.device})") if name == "products" else ("", "")
        text = (
            f"{name} of agent {agent}{kinds[0]} is {_short(mine)}, of agent {other}{kinds[1]}"
            f" {_short(theirs)}: {remedy}"
        )
        reason = Reason.DEVICE_DIFFERS if is_device else Reason.FINGERPRINT_MISMATCH
        return Refusal(reason, text)
    return None


def are_alike(one: Fingerprint, other: Fingerprint) -> bool:
    """Whether :func:`compare` finds nothing."""
    return not any(_differs(name, getattr(one, name), getattr(other, name)) for name in _REMEDIES)


def _differs(name: str, one: str | int, other: str | int) -> bool:
    return one != other and not (name in DIGESTS and not (one and other))


def _short(value: str | int) -> str:
    """As in a message, where a digest leaves no room for the remedy."""
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _SHOWN + 1]}...'"


def joined(one: Fingerprint, other: Fingerprint) -> Fingerprint:
    """One fingerprint for two agents that do not differ: what either knows."""
    known = {name: getattr(one, name) or getattr(other, name) for name in DIGESTS}
    return replace(one, **known)


def unknown(found: Fingerprint) -> int:
    """Number of digests that an agent does not know."""
    return sum(not getattr(found, name) for name in DIGESTS)


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
