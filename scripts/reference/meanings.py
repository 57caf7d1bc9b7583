"""docs/reference/status.md, and the meanings in docs/troubleshooting.md: the core's enums."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from scripts.reference.text import NOTE, sentence

from bamboo_core.api import events, reasons
from bamboo_core.controller import conditions, lifecycle


class Member(NamedTuple):
    """A member of an enum. group: the comment line above it, or above the members before it."""

    value: str
    text: str
    group: str


def members(enum: type[StrEnum]) -> list[Member]:
    """Members of an enum with their descriptions: the string below, or the comment beside."""
    source = Path(inspect.getfile(enum)).read_text()
    lines = source.splitlines()
    (body,) = (
        node.body
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef) and node.name == enum.__name__
    )
    found, start = list[Member](), body[0].lineno
    group = ""
    for node, after in zip(body, [*body[1:], None], strict=True):
        for line in lines[start - 1 : node.lineno - 1]:
            if line.strip().startswith("# "):
                group = line.strip()[2:]
        start = (node.end_lineno or node.lineno) + 1
        if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Name):
            text = lines[node.lineno - 1].partition("  # ")[2]
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                text = inspect.cleandoc(str(after.value.value))
            found.append(Member(enum[target.id].value, sentence(text), group))
    return found


def status_page() -> str:
    """Phases, conditions, reasons and events."""
    lines = [
        "# Phases, conditions, reasons and events",
        "",
        NOTE,
        "`kubectl get bj` shows the phase. `kubectl describe bj NAME` shows conditions and events.",
        "[troubleshooting.md](../troubleshooting.md) says what to do about each reason.",
        "",
        "## Phases",
        "",
        "The phase sums up the conditions. Programs should read the conditions.",
        "",
        *_member_table("phase", reasons.JobPhase),
        "",
        "## Conditions",
        "",
        *_member_table("condition", reasons.ConditionType),
        "",
        "## Reasons",
        "",
        "The message of a condition has the details.",
        "",
        "| reason | condition | meaning |",
        "|---|---|---|",
        *_reason_rows(),
        "",
        "## Causes of failures",
        "",
        "Why agents failed, in `status.failures` and in the metric `bamboo_job_failures_total`.",
        "",
        *_member_table("cause", reasons.FailureCause),
        *_event_lines(),
    ]
    return "\n".join(lines) + "\n"


def _reason_rows() -> list[str]:
    used = conditions_of_reasons()
    return [
        f"| `{m.value}` | {', '.join(used[m.value])} | {m.text} |" for m in members(reasons.Reason)
    ]


def conditions_of_reasons() -> dict[str, list[str]]:
    """With which conditions a reason is used: by the comment above it and by the code."""
    found = {m.value: set(re.findall(r"\w+", m.group)) for m in members(reasons.Reason)}
    sources = [ast.parse(inspect.getsource(module)) for module in (conditions, lifecycle)]
    for function in (node for source in sources for node in ast.walk(source)):
        if not isinstance(function, ast.FunctionDef):
            continue
        calls = [function]
        if len(_named(function, "Type")) > 1:  # each call of Condition says its own
            calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
        for node in calls:
            for kind in _named(node, "Type"):
                for reason in _named(node, "Reason"):
                    found[reasons.Reason[reason]].add(reasons.ConditionType[kind])
    return {
        reason: [kind.value for kind in reasons.ConditionType if kind in kinds]
        for reason, kinds in found.items()
    }


def _named(node: ast.AST, enum: str) -> set[str]:
    """Members of an enum that are named in a piece of code."""
    return {
        part.attr
        for part in ast.walk(node)
        if isinstance(part, ast.Attribute)
        and isinstance(part.value, ast.Name)
        and part.value.id == enum
    }


def _member_table(title: str, enum: type[StrEnum]) -> list[str]:
    rows = [f"| `{m.value}` | {m.text} |" for m in members(enum)]
    return [f"| {title} | meaning |", "|---|---|", *rows]


def _event_lines() -> list[str]:
    rows = [
        f"| `{m.value}` | {m.text} | {', '.join(f'`{f}`' for f in _facts(m.value))} |"
        for m in members(events.EventReason)
    ]
    return [
        "",
        "## Events",
        "",
        "The sentence of an event is for people and may change. Programs read the facts, which are",
        f"annotations of the Event: `{events.ANNOTATION_PREFIX}NAME`.",
        "",
        "| event | meaning | facts |",
        "|---|---|---|",
        *rows,
        "",
        "### Facts of events",
        "",
        *_member_table("fact", events.EventFact),
    ]


def _facts(reason: str) -> tuple[str, ...]:
    return tuple(events.FACTS[events.EventReason(reason)])


def with_meanings(page: str) -> str:
    """The page with the question of each condition and the meaning of each reason."""
    questions = {m.value: m.text for m in members(reasons.ConditionType)}
    meanings = {m.value: m.text for m in members(reasons.Reason)}
    head, *sections = re.split(r"^(?=## )", page, flags=re.M)
    return head + "".join(_with_meanings(section, questions, meanings) for section in sections)


def _with_meanings(section: str, questions: Mapping[str, str], meanings: Mapping[str, str]) -> str:
    condition = re.match(r"## `(\w+)`\n", section)
    if condition is None:
        return section
    title, _, *rest = section.split("\n\n")
    text = "\n\n".join([title, questions[condition[1]], *rest])
    row = re.compile(r"^\| `(\w+)` \| (\w+) \| [^|]* \|", re.M)
    return row.sub(lambda m: f"| `{m[1]}` | {m[2]} | {meanings[m[1]]} |", text)
