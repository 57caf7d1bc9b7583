"""Core messages -> proto. Programs and items travel in their text forms.

Times become whole milliseconds where proto says so. A number that does not fit its field raises
WireError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from bamboo_core.model.ids import Fence, Range
from bamboo_core.model.numerics import BatchShape
from bamboo_core.model.program import to_text
from bamboo_core.protocol import messages as m
from bamboo_proto.v1 import agent_pb2 as pb
from bamboo_wire.errors import WireError

_Pair = tuple[str, Any]
_T = TypeVar("_T")


def agent_message(message: m.AgentMessage) -> pb.AgentMessage:
    """Wrap what an agent says. WireError if a number does not fit its field."""
    return _wrapped(pb.AgentMessage, _AGENT[type(message)], message)


def operator_message(message: m.OperatorMessage) -> pb.OperatorMessage:
    """Wrap what the operator says. WireError if a number does not fit its field."""
    return _wrapped(pb.OperatorMessage, _OPERATOR[type(message)], message)


def to_worker(message: m.OperatorMessage) -> pb.ToWorker:
    """Wrap what the supervisor tells its worker: Welcome is its set-up."""
    wrapped = operator_message(message)
    if isinstance(message, m.Welcome):
        return pb.ToWorker(setup=wrapped.welcome)
    return pb.ToWorker(operator=wrapped)


def from_worker(message: m.AgentMessage) -> pb.FromWorker:
    """Wrap what the worker wants passed on."""
    return pb.FromWorker(agent=agent_message(message))


def _wrapped(outer: Callable[..., _T], body: Callable[[Any], _Pair], message: Any) -> _T:
    try:
        name, value = body(message)
        return outer(**{name: value})
    except (ValueError, TypeError) as error:
        raise WireError(type(message).__name__, str(error)) from error


# ---------------------------------------------------------------- parts


def fence(value: Fence) -> pb.Fence:
    """A fence."""
    return pb.Fence(attempt=value.attempt, term=value.term, epoch=value.epoch)


def _millis(seconds: float) -> int:
    return round(seconds * 1000)


def _ranges(values: Iterable[Range]) -> list[Any]:
    return [pb.Range(lo=lo, hi=hi) for lo, hi in values]


def _batch(value: BatchShape) -> pb.BatchShape:
    return pb.BatchShape(
        microbatches=value.microbatches, leaf_size=value.leaf_size, chunks=value.chunks
    )


def _commit(value: m.CommitRecord) -> pb.CommitRecord:
    return pb.CommitRecord(
        step=value.step,
        loss=value.loss,
        grad_norm=value.grad_norm,
        finite=value.finite,
        has_validation_loss=value.validation_loss is not None,
        validation_loss=value.validation_loss or 0.0,
    )


def _manifest(value: m.Manifest) -> pb.Manifest:
    return pb.Manifest(attempt=value.attempt, step=value.step, path=value.path, digest=value.digest)


def _peers(values: Iterable[m.Peer]) -> list[Any]:
    return [
        pb.Peer(
            agent=peer.agent,
            data_address=peer.data_address,
            liveness_address=peer.liveness_address,
            key=peer.key,
        )
        for peer in values
    ]


# ---------------------------------------------------------------- agent -> operator


def _hello(x: m.Hello) -> _Pair:
    return "hello", pb.Hello(
        agent=x.agent,
        pod_uid=x.pod_uid,
        node=x.node,
        zone=x.zone,
        machine=x.machine,
        data_address=x.data_address,
        liveness_address=x.liveness_address,
        fence=fence(x.fence),
        has_state=x.has_state,
    )


def _ready(x: m.Ready) -> _Pair:
    print_ = x.fingerprint
    return "ready", pb.Ready(
        fingerprint=pb.Fingerprint(
            code=print_.code,
            data=print_.data,
            torch=print_.torch,
            device=print_.device,
            threads=print_.threads,
        ),
        layers=x.layers,
        training_samples=x.training_samples,
        validation_samples=x.validation_samples,
        costs=[
            pb.LayerCost(
                forward_s=cost.forward_s,
                backward_s=cost.backward_s,
                parameter_bytes=cost.parameter_bytes,
                output_bytes=cost.output_bytes,
                input_gradient_s=cost.input_gradient_s,
                weight_gradient_s=cost.weight_gradient_s,
                can_split=cost.can_split,
                activation_bytes=cost.activation_bytes,
            )
            for cost in x.costs
        ],
        storage_error=x.storage_error,
        memory_bytes=x.memory_bytes,
    )


def _heartbeat(x: m.Heartbeat) -> _Pair:
    return "heartbeat", pb.Heartbeat(
        sequence=x.sequence, step=x.step, progress_word=x.progress_word
    )


def _report(x: m.AgentReport) -> _Pair:
    return "report", pb.AgentReport(
        fence=fence(x.fence),
        installed=fence(x.installed),
        versions=x.versions,
        items=sorted(str(item) for item in x.items),
        commits=[_commit(c) for c in x.commits],
        ended=x.ended,
        manifests=[_manifest(c) for c in x.manifests],
    )


def _progress(x: m.Progress) -> _Pair:
    return "progress", pb.Progress(
        step=x.commit.step,
        commit=_commit(x.commit),
        step_s=x.step_s,
        busy_s=x.busy_s,
        sent_bytes=x.sent_bytes,
        redone_tasks=x.redone_tasks,
    )


CAUSES = {
    m.Cause.LIVENESS_CLOSED: pb.Suspicion.CAUSE_LIVENESS_CLOSED,
    m.Cause.LIVENESS_SILENT: pb.Suspicion.CAUSE_LIVENESS_SILENT,
    m.Cause.CHANNEL_BROKEN: pb.Suspicion.CAUSE_CHANNEL_BROKEN,
}
"""Core's causes and proto's."""


def _suspicion(x: m.Suspicion) -> _Pair:
    return "suspicion", pb.Suspicion(agent=x.agent, cause=CAUSES[x.cause], fence=fence(x.fence))


def _notice(x: m.Notice) -> _Pair:
    return "notice", pb.Notice(lead_ms=_millis(x.lead_s), reason=x.reason)


def _failure(x: m.Failure) -> _Pair:
    return "failure", pb.Failure(
        reason=x.reason, message=x.message, user_error=x.user_error, exit_code=x.exit_code
    )


def _sealed(x: m.Sealed) -> _Pair:
    return "sealed", _manifest(x.manifest)


def _bad_checkpoint(x: m.BadCheckpoint) -> _Pair:
    return "bad_checkpoint", pb.BadCheckpoint(
        attempt=x.attempt, step=x.step, message=x.message, cause=x.cause
    )


def _left(_: m.Left) -> _Pair:
    return "left", pb.Left()


def _finished(x: m.Finished) -> _Pair:
    return "finished", pb.Finished(fence=fence(x.fence))


_AGENT: dict[type, Callable[[Any], _Pair]] = {
    m.Hello: _hello,
    m.Ready: _ready,
    m.Heartbeat: _heartbeat,
    m.AgentReport: _report,
    m.Progress: _progress,
    m.Suspicion: _suspicion,
    m.Notice: _notice,
    m.Failure: _failure,
    m.Sealed: _sealed,
    m.BadCheckpoint: _bad_checkpoint,
    m.Left: _left,
    m.Finished: _finished,
}

# ---------------------------------------------------------------- operator -> agent


def _welcome(x: m.Welcome) -> _Pair:
    return "welcome", pb.Welcome(
        term=x.term,
        job=x.job,
        job_uid=x.job_uid,
        spec_json=x.spec_json,
        heartbeat_ms=_millis(x.heartbeat_s),
        lease_ms=_millis(x.lease_s),
    )


def _stop(x: m.Stop) -> _Pair:
    return "stop", pb.Stop(fence=fence(x.fence), want_manifests=x.want_manifests)


def _directive(x: m.Directive) -> _Pair:
    return "directive", pb.Directive(
        fence=fence(x.fence),
        target=x.target,
        last=x.last,
        resume=to_text(x.resume),
        plan_hash=x.plan_hash,
        has_continuation=x.has_continuation,
        wanted=_ranges(x.wanted),
        peers=_peers(x.peers),
        key=x.key,
        manifest=None if x.manifest is None else _manifest(x.manifest),
        voters=",".join(x.voters),
        batch=_batch(x.batch),
        coordinator=x.coordinator,
    )


def _continuation(x: m.Continuation) -> _Pair:
    return "continuation", pb.Continuation(
        fence=fence(x.fence),
        plan_hash=x.plan_hash,
        steady=to_text(x.steady),
        final=to_text(x.final),
        peers=_peers(x.peers),
    )


def _release(x: m.Release) -> _Pair:
    return "release", pb.Release(exit_code=x.exit_code, reason=x.reason)


def _reconnect(x: m.Reconnect) -> _Pair:
    return "reconnect", pb.Reconnect(after_ms=_millis(x.after_s))


_OPERATOR: dict[type, Callable[[Any], _Pair]] = {
    m.Welcome: _welcome,
    m.Stop: _stop,
    m.Directive: _directive,
    m.Continuation: _continuation,
    m.Release: _release,
    m.Reconnect: _reconnect,
}
