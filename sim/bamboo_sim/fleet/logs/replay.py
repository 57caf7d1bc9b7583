"""Trace validation: replays a worker's event log through a new executor."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

from bamboo_agent.worker.event_log import describe
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.items import parse_item
from bamboo_core.protocol.execution.lane import Patience
from bamboo_core.protocol.executor import Effect, Executor, ProtocolError
from bamboo_core.protocol.messages import CommitRecord, Continuation, Directive, Stop
from bamboo_proto.v1 import agent_pb2 as pb
from bamboo_wire import decode


def divergence(lines: Sequence[str]) -> str | None:
    """The first effects that differ from the recorded ones, or None."""
    first, *rest = (json.loads(line) for line in lines)
    name, layers, ahead = AgentId(first["agent"]), first["layers"], first["ahead"]
    executor = Executor(name, layers, ahead=ahead, patience=Patience())
    for number, event in enumerate(rest, start=2):
        try:
            found = [describe(effect) for effect in _feed(executor, event)]
        except ProtocolError as error:
            return f"line {number}: recorded {event['effects']}, replayed {error}"
        if found != event["effects"]:
            return f"line {number}: recorded {event['effects']}, replayed {found}"
    return None


def _feed(executor: Executor, event: dict[str, Any]) -> list[Effect]:
    executor.now = event["at"]
    if "stop" in event:
        message = _message(event["stop"])
        assert isinstance(message, Stop)
        return executor.stop(message)
    if "install" in event:
        message = _message(event["install"])
        assert isinstance(message, Directive)
        return executor.install(message)
    if "proceed" in event:
        message = _message(event["proceed"])
        assert isinstance(message, Continuation)
        return executor.proceed(message)
    if "arrive" in event:
        item, fence = parse_item(event["arrive"]), Fence(*event["fence"])
        return executor.arrive(item, fence, _record(event["commit"]))
    if "saved" in event:
        return executor.saved(parse_item(event["saved"]))
    if "unsaved" in event:
        return executor.unsaved(set(event["unsaved"]))
    if "issued" in event:
        return executor.issued()
    if "abandon" in event:
        return executor.abandon()
    if "skip" in event:
        return executor.skip()
    return executor.done(_record(event["done"]))


def _message(text: str) -> Any:
    return decode.operator_message(decode.parse_bytes(pb.OperatorMessage, base64.b64decode(text)))


def _record(values: dict[str, Any] | None) -> CommitRecord | None:
    return None if values is None else CommitRecord(**values)
