"""Logs of real agents, replayed through the state machines of the core."""

from __future__ import annotations

from pathlib import Path

from tests.agents.replay import divergence

from bamboo_agent.trace import divergences as member_divergences


def whole_lines(path: Path) -> list[str]:
    """Without a last line that the process's death has cut short."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [line for line in lines if line.endswith("\n")]


def begun(folder: Path) -> list[Path]:
    """The logs in ``folder`` that have a whole line."""
    return [path for path in sorted(folder.glob("*.jsonl")) if whole_lines(path)]


def divergences(folder: Path) -> list[str]:
    """Where workers or supervisors whose logs lie in ``folder`` ($BAMBOO_EVENT_LOG) answered
    otherwise than Executor and Member do; ValueError if there are no logs.

    Who died before the first line was written has said nothing that could diverge.
    """
    workers, members = begun(folder), begun(folder / "members")
    if not workers or not members:
        raise ValueError(f"{folder} has {len(workers)} workers' and {len(members)} members' logs")
    found = [(path, divergence(whole_lines(path))) for path in workers]
    out = [f"{path}: {text}" for path, text in found if text is not None]
    return out + [text for path in members for text in member_divergences(path)]
