"""Event logs of real agents, replayed through the core's state machines."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from bamboo_agent.supervisor.event_log import divergences as supervisor_divergences
from bamboo_core.protocol.messages import Directive
from bamboo_proto.v1 import agent_pb2 as pb
from bamboo_sim.fleet.logs.replay import divergence
from bamboo_wire import decode


def whole_lines(path: Path) -> list[str]:
    """The lines, without a last one that the process's death cut short."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [line for line in lines if line.endswith("\n")]


def non_empty_logs(folder: Path) -> list[Path]:
    """The logs in ``folder`` that have a complete line."""
    return [path for path in sorted(folder.glob("*.jsonl")) if whole_lines(path)]


def divergences(folder: Path) -> list[str]:
    """Where workers or supervisors whose logs lie in ``folder`` ($BAMBOO_EVENT_LOG) answered
    otherwise than Executor and Supervisor do; ValueError if there are no logs.

    Who died before the first line was written has said nothing that could diverge.
    """
    workers, supervisors = non_empty_logs(folder), non_empty_logs(folder / "supervisors")
    if not workers or not supervisors:
        raise ValueError(
            f"{folder} has {len(workers)} workers' and {len(supervisors)} supervisors' logs"
        )
    found = [(path, divergence(whole_lines(path))) for path in workers]
    out = [f"{path}: {text}" for path, text in found if text is not None]
    return out + [text for path in supervisors for text in supervisor_divergences(path)]


def directives(path: Path) -> list[Directive]:
    """The directives that a worker received, from its log."""
    lines = (json.loads(line) for line in whole_lines(path))
    packed = (base64.b64decode(line["install"]) for line in lines if "install" in line)
    found = [
        decode.operator_message(decode.parse_bytes(pb.OperatorMessage, text)) for text in packed
    ]
    return [message for message in found if isinstance(message, Directive)]


def step_ends(path: Path) -> list[float]:
    """When a worker ended each of its steps, in seconds of time.monotonic(), from its log."""
    lines = (json.loads(line) for line in whole_lines(path)[1:])
    return [
        line["at"]
        for line in lines
        if any(effect.startswith("ended ") for effect in line["effects"])
    ]
