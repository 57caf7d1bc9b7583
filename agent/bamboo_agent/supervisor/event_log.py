"""A log of all events and effects of a supervisor's state machine, for replay.

Written if ``BAMBOO_EVENT_LOG`` names a folder, which also gets the worker's log. One JSON object
per line: first identity and timing, then the time, event and effects of each call. Messages are
base64 of their proto bytes. Ticks without effects share one line, since only their times count:
they advance the clock that forgives pauses.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

from bamboo_core.protocol import messages as m
from bamboo_core.protocol import supervisor as core
from bamboo_proto.v1 import agent_pb2 as pb
from bamboo_wire import decode, encode

Json = dict[str, Any]


class EventLog:
    """Writes one file, named after the agent."""

    def __init__(self, folder: Path, supervisor: core.Supervisor) -> None:
        """Create the file. OSError if that fails."""
        self.path = folder / "supervisors" / f"{supervisor.identity.agent}.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("w", encoding="utf-8", buffering=1)
        self._ticks: list[float] = []
        self._write({"identity": _agent(supervisor.identity), "timing": _plain(supervisor.timing)})

    def record(self, event: core.Event, now: float, effects: Iterable[core.Effect]) -> None:
        """Log one call of ``Supervisor.handle``. Ticks without effects wait for the next line."""
        answers = [_plain(effect) for effect in effects]
        if isinstance(event, core.Tick) and not answers:
            self._ticks.append(now)
            return
        if self._ticks:
            self._write({"ticks": self._ticks})
            self._ticks = []
        self._write({"now": now, "event": _plain(event), "effects": answers})

    def close(self) -> None:
        self._file.close()

    def _write(self, line: Json) -> None:
        self._file.write(json.dumps(line) + "\n")


def divergences(path: Path) -> list[str]:
    """Replay a file through a new Supervisor. One sentence for each line with other effects.

    An incomplete last line is ignored: the process has died.
    """
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    first, *rest = (json.loads(line) for line in lines if line.endswith("\n"))
    supervisor = core.Supervisor(_hello(first["identity"]), core.Timing(**_values(first["timing"])))
    out = []
    for number, line in enumerate(rest, start=2):
        recorded = line.get("effects", [])
        calls: list[tuple[core.Event, float]] = [
            (core.Tick(), now) for now in line.get("ticks", [])
        ]
        calls += [(_event(line["event"]), line["now"])] if "event" in line else []
        effects = [_plain(e) for event, now in calls for e in supervisor.handle(event, now)]
        if effects != recorded:
            out.append(f"{path}:{number}: recorded {recorded}, replayed {effects}")
    return out


# ---------------------------------------------------------------- conversion


def _plain(value: Any) -> Json:
    """A dataclass of bamboo_core.protocol.supervisor: its name, its fields, messages as base64."""
    return {"is": type(value).__name__} | {
        field.name: _field(getattr(value, field.name)) for field in fields(value)
    }


def _field(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, tuple):
        return [_plain(peer) for peer in value]
    if type(value) in _OPERATOR:
        return _operator(value)
    if type(value) in _AGENT:
        return _agent(value)
    return value


_OPERATOR: frozenset[type] = frozenset(get_args(m.OperatorMessage))
_AGENT: frozenset[type] = frozenset(get_args(m.AgentMessage))


def _agent(message: m.AgentMessage) -> str:
    return _base64(encode.agent_message(message))


def _operator(message: m.OperatorMessage) -> str:
    return _base64(encode.operator_message(message))


def _base64(message: Any) -> str:
    return base64.b64encode(message.SerializeToString(deterministic=True)).decode()


def _said_by_agent(text: str) -> m.AgentMessage:
    return decode.agent_message(decode.parse_bytes(pb.AgentMessage, base64.b64decode(text)))


def _said_by_operator(text: str) -> m.OperatorMessage:
    return decode.operator_message(decode.parse_bytes(pb.OperatorMessage, base64.b64decode(text)))


def _hello(text: str) -> m.Hello:
    message = _said_by_agent(text)
    assert isinstance(message, m.Hello)
    return message


def _values(line: Json) -> Json:
    return {name: value for name, value in line.items() if name != "is"}


def _event(line: Json) -> core.Event:
    if line["is"] == "FromOperator":
        return core.FromOperator(_said_by_operator(line["message"]))
    if line["is"] == "FromWorker":
        return core.FromWorker(_said_by_agent(line["message"]))
    values = _values(line)
    if line["is"] == "Progressed":
        values["kind"] = m.ActivityKind(values["kind"])
    event: core.Event = getattr(core, line["is"])(**values)
    return event
