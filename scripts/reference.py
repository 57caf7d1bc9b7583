"""Writes docs/reference, the meanings in docs/troubleshooting.md, and the chart's README.md, boards
and rules; see scripts/gen-docs.

Sources: crds/bamboojobs.yaml, docs/reference/every-field.yaml (the examples), the enums of
bamboo_core.api with the string below each member, the help texts of the metrics, and the comments
in the chart's values.yaml.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import itertools
import json
import re
import sys
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

from bamboo_agent.supervisor import health
from bamboo_core.api import events, reasons
from bamboo_core.controller import lifecycle
from bamboo_operator import metrics
from bamboo_sim.watching import files as watching

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path("docs/reference")
EVERY_FIELD = FOLDER / "every-field.yaml"
TROUBLESHOOTING = Path("docs/troubleshooting.md")
CHART = Path("charts/bamboo")
NOTE = "<!-- Written by scripts/gen-docs. Edit the code, not this page. -->\n"

_LONGEST_EXAMPLE = 80

Schema = Mapping[str, Any]


class Member(NamedTuple):
    """A member of an enum. group: the comment line above it, or above the members before it."""

    value: str
    text: str
    group: str


# ---------------------------------------------------------------- spec.md


def spec_page(schema: Schema, example: Any) -> str:
    """Every field of the spec, one section for each object."""
    lines = [
        "# Fields of a BambooJob",
        "",
        NOTE,
        "`apiVersion: bamboo.dev/v1alpha1`, `kind: BambooJob`. The examples on this page come from",
        "[every-field.yaml](every-field.yaml), a job that sets every field.",
        "The API server applies the defaults and checks the limits and rules when you apply a job.",
    ]
    root = schema["properties"]["spec"]
    own = {"properties": {}, "x-kubernetes-validations": _rules(schema)}
    lines += ["", "## `metadata`", "", *_rule_lines(own)]
    for path, node in _objects("spec", root):
        lines += ["", f"## `{path}`", ""]
        if description := node.get("description"):
            lines += [_sentence(description), ""]
        lines += _field_table(path, node, example)
        lines += _rule_lines(node)
    return "\n".join(lines) + "\n"


def fields(path: str, node: Schema) -> Iterator[tuple[str, Schema]]:
    """Every field below an object, with its path; items of a list are written ``name[]``."""
    for name, child in node.get("properties", {}).items():
        below = f"{path}.{name}"
        yield below, child
        yield from fields(below, child)
        if child.get("type") == "array":
            yield from fields(f"{below}[]", child["items"])


def _objects(path: str, node: Schema) -> Iterator[tuple[str, Schema]]:
    yield path, node
    for name, child in node.get("properties", {}).items():
        below = f"{path}.{name}"
        if child.get("type") == "array":
            below, child = f"{below}[]", child["items"]
        if "properties" in child:
            yield from _objects(below, child)


def _field_table(path: str, node: Schema, example: Any) -> list[str]:
    rows = ["| field | type | default | limits | meaning | example |", "|---|---|---|---|---|---|"]
    required = node.get("required", ())
    for name, child in node["properties"].items():
        cells = [
            f"`{name}`",
            _type(child),
            "required" if name in required else _default(child),
            _limits(child),
            _sentence(child.get("description", "")),
            _example(f"{path}.{name}", child, example),
        ]
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return rows


def _type(node: Schema) -> str:
    if node.get("x-kubernetes-int-or-string"):
        return "quantity"
    kind = node.get("type", "any")
    if kind == "array":
        return f"list of {_type(node['items'])}s"
    if "additionalProperties" in node:
        return f"map of string to {_type(node['additionalProperties'])}"
    if node.get("x-kubernetes-preserve-unknown-fields"):
        return "free-form object"
    return str(kind)


def _default(node: Schema) -> str:
    if "default" in node and node["default"] != {}:
        return f"`{json.dumps(node['default'])}`"
    return "" if "properties" in node else "unset"


def _limits(node: Schema) -> str:
    parts = []
    if "enum" in node:
        parts.append("one of " + ", ".join(f"`{value}`" for value in node["enum"]))
    low, high = node.get("minimum"), node.get("maximum")
    if low is not None and high is not None:
        parts.append(f"{low:,} to {high:,}")
    if high := node.get("maxLength"):
        parts.append(f"{node.get('minLength', 0):,} to {high:,} characters")
    for key, what in (("maxItems", "items"), ("maxProperties", "entries")):
        if key in node:
            parts.append(f"at most {node[key]} {what}")
    if node.get("x-kubernetes-list-type") == "set":
        parts.append("no duplicates")
    if keys := node.get("x-kubernetes-list-map-keys"):
        parts.append(f"`{', '.join(keys)}` is unique")
    parts += [f"{rule['message']}" for rule in _rules(node) if "properties" not in node]
    return "; ".join(parts)


def _example(path: str, node: Schema, example: Any) -> str:
    if "properties" in node or "properties" in node.get("items", {}):
        return ""
    text = json.dumps(_at(path, example))
    return f"`{text}`" if len(text) <= _LONGEST_EXAMPLE else "see every-field.yaml"


def _at(path: str, example: Any) -> Any:
    """The value of a field in the example. KeyError if the example does not set it."""
    found = example
    for part in path.split("."):
        name = part.removesuffix("[]")
        if name not in found:
            raise KeyError(f"{EVERY_FIELD} does not set {path}")
        found = found[name]
        if part.endswith("[]"):
            wanted = path.rpartition(".")[2]
            found = next(item for item in found if wanted in item)
    return found


def _rules(node: Schema) -> list[dict[str, str]]:
    return list(node.get("x-kubernetes-validations", ()))


def _rule_lines(node: Schema) -> list[str]:
    """CEL rules that concern an object as a whole, with what the API server answers."""
    kinds = {"Rules:": [], "Rules for changes:": []}  # type: dict[str, list[str]]
    for rule in _rules(node):
        kind = "Rules for changes:" if "oldSelf" in rule["rule"] else "Rules:"
        kinds[kind].append(f"- {_sentence(rule['message'])} <br> `{rule['rule']}`")
    lines = list[str]()
    for title, rules in kinds.items():
        if rules:
            lines += ["", title, "", *rules]
    return lines


# ---------------------------------------------------------------- status.md


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
            found.append(Member(enum[target.id].value, _sentence(text), group))
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
    for function in ast.walk(ast.parse(inspect.getsource(lifecycle))):
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


# ---------------------------------------------------------------- troubleshooting.md


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


# ---------------------------------------------------------------- metrics.md


def metrics_page() -> str:
    """Every series of operator and agent."""
    agent = health.Metrics(job="namespace/job", agent="agent")
    lines = [
        "# Metrics",
        "",
        NOTE,
        "Series about a job carry the labels `job_namespace` and `training_job`. They end with the",
        "job.",
        "",
        "## Operator",
        "",
        *_metric_table(metrics.Metrics(list).registry),
        "",
        "## Agent",
        "",
        "These help to diagnose one agent. They end with its pod; the operator exports what lasts.",
        "",
        *_metric_table(agent.registry),
    ]
    return "\n".join(lines) + "\n"


def _metric_table(registry: CollectorRegistry) -> list[str]:
    families = sorted(
        (f for f in registry.collect() if f.name.startswith("bamboo_")), key=lambda f: f.name
    )
    rows = [
        f"| `{_exported(f)}` | {f.type} | {_labels(f, registry)} | {_sentence(f.documentation)} |"
        for f in families
    ]
    return ["| metric | type | labels | meaning |", "|---|---|---|---|", *rows]


def _exported(family: Metric) -> str:
    return f"{family.name}_total" if family.type == "counter" else family.name


def _labels(family: Metric, registry: CollectorRegistry) -> str:
    """Families made at scrape time carry their labels; the others' collectors do."""
    names = getattr(family, "_labelnames", None)
    if names is None:
        collectors = registry._names_to_collectors
        collector = collectors.get(_exported(family)) or collectors.get(family.name)
        names = getattr(collector, "_labelnames", ())
    return ", ".join(f"`{name}`" for name in names)


# ---------------------------------------------------------------- the chart


def chart_page() -> str:
    """The chart's values, with the comments above them."""
    values = (ROOT / CHART / "values.yaml").read_text()
    schema = json.loads((ROOT / CHART / "values.schema.json").read_text())
    texts, files = comments(values), sorted((ROOT / CHART / "values").glob("*.yaml"))
    heads = [(file.name, _head(file.read_text())) for file in files]
    lines = [
        "# The Bamboo chart",
        "",
        NOTE.replace("the code", "values.yaml"),
        "It installs the operator, its rights, and the resource definition of BambooJobs. Helm",
        "neither upgrades nor deletes the definition; to upgrade it:",
        "`kubectl apply --server-side --force-conflicts -f crds/`.",
        "",
        "## Files for one kind of cluster",
        "",
        "`--values charts/bamboo/values/FILE` sets what differs there.",
        "",
        "| file | for |",
        "|---|---|",
        *(f"| [{name}](values/{name}) | {_sentence(text)} |" for name, text in heads),
        "",
        "## Values",
        "",
        "| value | default | meaning |",
        "|---|---|---|",
    ]
    for path, default in chart_values(yaml.safe_load(values), schema):
        shown = json.dumps(default)
        shown = f"`{shown}`" if len(shown) <= _LONGEST_EXAMPLE else "see values.yaml"
        lines.append(f"| `{path}` | {shown} | {_sentence(texts[path])} |")
    return "\n".join(lines) + "\n"


def _head(text: str) -> str:
    """The comment at the beginning of a file."""
    lines = itertools.takewhile(lambda line: line.startswith("#"), text.splitlines())
    return " ".join(line.removeprefix("#").strip() for line in lines)


def comments(text: str) -> dict[str, str]:
    """Path of a value -> the comment lines directly above it. Two spaces make a level."""
    found, above, path = dict[str, str](), list[str](), list[str]()
    for line in text.splitlines():
        bare = line.strip()
        if bare.startswith("#"):
            above.append(bare.removeprefix("#").strip())
            continue
        if key := re.match(r"( *)(\w+):", line):
            path = [*path[: len(key[1]) // 2], key[2]]
            if above:
                found[".".join(path)] = " ".join(above)
        above = []
    return found


def chart_values(values: Any, schema: Schema, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value with its default; an affinity is one row."""
    for name, value in values.items():
        node = schema["properties"][name]
        below = f"{path}{name}"
        if "properties" in node and name != "affinity":
            yield from chart_values(value, node, f"{below}.")
        else:
            yield below, value


# ---------------------------------------------------------------- all


def _sentence(text: str) -> str:
    """One line, ending like a sentence."""
    text = re.sub(r"\s+", " ", text).strip().replace("**", "\\*\\*").replace("``", "`")
    if not text:
        return ""
    first = text[0].upper() if re.match(r"[a-z]+[ ,;]", text) else text[0]
    return first + text[1:] + ("" if text[-1] in ".!?" else ".")


def pages() -> dict[Path, str]:
    """Every generated page by its path from the root."""
    definition = yaml.safe_load((ROOT / "crds/bamboojobs.yaml").read_text())
    (version,) = definition["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    example = yaml.safe_load((ROOT / EVERY_FIELD).read_text())
    return {
        FOLDER / "spec.md": spec_page(schema, example),
        FOLDER / "status.md": status_page(),
        FOLDER / "metrics.md": metrics_page(),
        CHART / "README.md": chart_page(),
        TROUBLESHOOTING: with_meanings((ROOT / TROUBLESHOOTING).read_text()),
        **watching.files(),
    }


def main() -> None:
    """Write the pages, or with --check only compare them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if a page differs"
    )
    is_check = parser.parse_args().check
    stale = list[str]()
    for path, text in pages().items():
        file = ROOT / path
        if is_check and (not file.exists() or file.read_text() != text):
            stale.append(str(path))
        elif not is_check:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    if stale:
        sys.exit(f"{', '.join(stale)}: not what the code says; run scripts/gen-docs")


if __name__ == "__main__":
    main()
