"""Proto -> core messages. Whatever the peer sent: a core message, or WireError naming the field.

Checked here: a body is there, required parts are there, names are not empty, numbers that count
something are not negative, texts parse. What the values mean is the receiver's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from google.protobuf.message import DecodeError

from bamboo_core.model.ids import AgentId, Fence, Range
from bamboo_core.model.items import Item, parse_item
from bamboo_core.model.numerics import BatchShape
from bamboo_core.model.program import Program, parse
from bamboo_core.protocol import messages as m
from bamboo_proto.v1 import agent_pb2 as pb
from bamboo_wire.encode import CAUSES
from bamboo_wire.errors import WireError

_T = TypeVar("_T")
_CAUSES = {number: cause for cause, number in CAUSES.items()}


def parse_bytes(kind: type[_T], data: bytes) -> _T:
    """Bytes -> proto message of class ``kind``. WireError if they are none."""
    message: Any = kind()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise WireError(kind.__name__, f"{len(data)} bytes are not such a message") from error
    return message  # type: ignore[no-any-return]


def agent_message(message: pb.AgentMessage) -> m.AgentMessage:
    """Unwrap what an agent said. WireError if it is malformed."""
    return _unwrapped(_AGENT, message, "agent message")  # type: ignore[no-any-return]


def operator_message(message: pb.OperatorMessage) -> m.OperatorMessage:
    """Unwrap what the operator said. WireError if it is malformed."""
    return _unwrapped(_OPERATOR, message, "operator message")  # type: ignore[no-any-return]


def to_worker(message: pb.ToWorker) -> m.OperatorMessage:
    """Unwrap what the supervisor told its worker. WireError if it is malformed."""
    kind = message.WhichOneof("body")
    if kind is None:
        raise WireError("to_worker", "has no body")
    if kind == "setup":
        return _welcome(message.setup, "setup")
    return operator_message(message.operator)


def from_worker(message: pb.FromWorker) -> m.AgentMessage:
    """Unwrap what the worker wants passed on. WireError if it is malformed."""
    return agent_message(message.agent)


def _unwrapped(bodies: dict[str, Callable[[Any, str], Any]], message: Any, what: str) -> Any:
    name = message.WhichOneof("body")
    if name is None:
        raise WireError(what, "has no body")
    return bodies[name](getattr(message, name), name)


# ---------------------------------------------------------------- parts


def _part(message: Any, name: str, at: str) -> Any:
    if not message.HasField(name):
        raise WireError(f"{at}.{name}", "is missing")
    return getattr(message, name)


def _fence(message: Any, at: str, name: str = "fence") -> Fence:
    value = _part(message, name, at)
    return Fence(value.attempt, value.term, value.epoch)


def _agent(message: Any, at: str, name: str = "agent") -> AgentId:
    value = getattr(message, name)
    if not value:
        raise WireError(f"{at}.{name}", "is empty")
    return AgentId(value)


def _count(message: Any, name: str, at: str, least: int = 0) -> int:
    value: int = getattr(message, name)
    if value < least:
        raise WireError(f"{at}.{name}", f"{value} is below {least}")
    return value


def _parsed(parser: Callable[[str], _T], text: str, at: str) -> _T:
    try:
        return parser(text)
    except ValueError as error:
        raise WireError(at, str(error)) from error


def _program(message: Any, name: str, at: str) -> Program:
    return _parsed(parse, getattr(message, name), f"{at}.{name}")


def _items(texts: Iterable[str], at: str) -> frozenset[Item]:
    return frozenset(_parsed(parse_item, text, f"{at}[{n}]") for n, text in enumerate(texts))


def _ranges(values: Iterable[Any], at: str) -> tuple[Range, ...]:
    out = tuple((int(r.lo), int(r.hi)) for r in values)
    for n, (lo, hi) in enumerate(out):
        if lo >= hi:
            raise WireError(f"{at}[{n}]", f"{lo}:{hi} is no range of layers")
    return out


def _batch(message: Any, at: str) -> BatchShape:
    value = _part(message, "batch", at)
    try:
        return BatchShape(value.microbatches, value.leaf_size, value.chunks)
    except ValueError as error:
        raise WireError(f"{at}.batch", str(error)) from error


def _commit(value: Any, at: str) -> m.CommitRecord:
    return m.CommitRecord(
        step=_count(value, "step", at),
        loss=value.loss,
        grad_norm=value.grad_norm,
        finite=value.finite,
        validation_loss=value.validation_loss if value.has_validation_loss else None,
    )


def _manifest(value: Any, at: str) -> m.Manifest:
    return m.Manifest(value.attempt, _count(value, "step", at), value.path, value.digest)


def _peers(values: Iterable[Any], at: str) -> tuple[m.Peer, ...]:
    return tuple(
        m.Peer(_agent(p, f"{at}[{n}]"), p.data_address, p.liveness_address, p.key)
        for n, p in enumerate(values)
    )


# ---------------------------------------------------------------- agent -> operator


def _hello(x: Any, at: str) -> m.Hello:
    return m.Hello(
        agent=_agent(x, at),
        pod_uid=x.pod_uid,
        node=x.node,
        zone=x.zone,
        machine=x.machine,
        data_address=x.data_address,
        liveness_address=x.liveness_address,
        fence=_fence(x, at),
        has_state=x.has_state,
    )


def _ready(x: Any, at: str) -> m.Ready:
    value = _part(x, "fingerprint", at)
    return m.Ready(
        fingerprint=m.Fingerprint(value.code, value.data, value.torch, value.device, value.threads),
        layers=_count(x, "layers", at, 1),
        training_samples=x.training_samples,
        validation_samples=x.validation_samples,
        costs=tuple(
            m.LayerCost(
                forward_s=c.forward_s,
                backward_s=c.backward_s,
                parameter_bytes=c.parameter_bytes,
                output_bytes=c.output_bytes,
                input_gradient_s=c.input_gradient_s,
                weight_gradient_s=c.weight_gradient_s,
                can_split=c.can_split,
                activation_bytes=c.activation_bytes,
            )
            for c in x.costs
        ),
        storage_error=x.storage_error,
        memory_bytes=x.memory_bytes,
    )


def _heartbeat(x: Any, at: str) -> m.Heartbeat:
    return m.Heartbeat(x.sequence, _count(x, "step", at, -1), x.progress_word)


def _report(x: Any, at: str) -> m.AgentReport:
    for layer, version in x.versions.items():
        if version < 0:
            raise WireError(f"{at}.versions[{layer}]", f"{version} is below 0")
    return m.AgentReport(
        fence=_fence(x, at),
        installed=_fence(x, at, "installed"),
        versions=dict(x.versions),
        items=_items(x.items, f"{at}.items"),
        commits=tuple(_commit(c, f"{at}.commits[{n}]") for n, c in enumerate(x.commits)),
        ended=_count(x, "ended", at, -1),
        manifests=tuple(_manifest(c, f"{at}.manifests[{n}]") for n, c in enumerate(x.manifests)),
    )


def _progress(x: Any, at: str) -> m.Progress:
    commit = _commit(_part(x, "commit", at), f"{at}.commit")
    if commit.step != x.step:
        raise WireError(f"{at}.step", f"{x.step} is not the commit's {commit.step}")
    return m.Progress(commit, x.step_s, x.busy_s, x.sent_bytes, x.redone_tasks)


def _suspicion(x: Any, at: str) -> m.Suspicion:
    if x.cause not in _CAUSES:
        raise WireError(f"{at}.cause", f"{x.cause} is no cause")
    return m.Suspicion(_agent(x, at), _CAUSES[x.cause], _fence(x, at))


def _notice(x: Any, at: str) -> m.Notice:
    return m.Notice(_count(x, "lead_ms", at) / 1000, x.reason)


def _failure(x: Any, _: str) -> m.Failure:
    return m.Failure(x.reason, x.message, x.user_error, x.exit_code)


def _sealed(x: Any, at: str) -> m.Sealed:
    return m.Sealed(_manifest(x, at))


def _bad_checkpoint(x: Any, at: str) -> m.BadCheckpoint:
    return m.BadCheckpoint(x.attempt, _count(x, "step", at), x.message, x.cause)


def _left(_: Any, __: str) -> m.Left:
    return m.Left()


def _finished(x: Any, at: str) -> m.Finished:
    return m.Finished(_fence(x, at))


_AGENT: dict[str, Callable[[Any, str], Any]] = {
    "hello": _hello,
    "ready": _ready,
    "heartbeat": _heartbeat,
    "report": _report,
    "progress": _progress,
    "suspicion": _suspicion,
    "notice": _notice,
    "failure": _failure,
    "sealed": _sealed,
    "bad_checkpoint": _bad_checkpoint,
    "left": _left,
    "finished": _finished,
}

# ---------------------------------------------------------------- operator -> agent


def _welcome(x: Any, _: str) -> m.Welcome:
    return m.Welcome(
        term=x.term,
        job=x.job,
        job_uid=x.job_uid,
        spec_json=x.spec_json,
        heartbeat_s=x.heartbeat_ms / 1000,
        lease_s=x.lease_ms / 1000,
    )


def _stop(x: Any, at: str) -> m.Stop:
    return m.Stop(_fence(x, at), x.want_manifests)


def _directive(x: Any, at: str) -> m.Directive:
    manifest = _manifest(x.manifest, f"{at}.manifest") if x.HasField("manifest") else None
    return m.Directive(
        fence=_fence(x, at),
        target=_count(x, "target", at),
        last=_count(x, "last", at, x.target),
        resume=_program(x, "resume", at),
        wanted=_ranges(x.wanted, f"{at}.wanted"),
        batch=_batch(x, at),
        coordinator=_agent(x, at, "coordinator"),
        voters=tuple(AgentId(v) for v in x.voters.split(",") if v),
        peers=_peers(x.peers, f"{at}.peers"),
        key=x.key,
        manifest=manifest,
        plan_hash=x.plan_hash,
        has_continuation=x.has_continuation,
    )


def _continuation(x: Any, at: str) -> m.Continuation:
    return m.Continuation(
        fence=_fence(x, at),
        plan_hash=x.plan_hash,
        steady=_program(x, "steady", at),
        final=_program(x, "final", at),
        peers=_peers(x.peers, f"{at}.peers"),
    )


def _release(x: Any, _: str) -> m.Release:
    return m.Release(x.exit_code, x.reason)


def _reconnect(x: Any, _: str) -> m.Reconnect:
    return m.Reconnect(x.after_ms / 1000)


_OPERATOR: dict[str, Callable[[Any, str], Any]] = {
    "welcome": _welcome,
    "stop": _stop,
    "directive": _directive,
    "continuation": _continuation,
    "release": _release,
    "reconnect": _reconnect,
}
