"""charts/bamboo/README.md, from the values of the chart and the comments above them."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from scripts.reference.text import LONGEST_EXAMPLE, NOTE, ROOT, Schema, sentence

CHART = Path("charts/bamboo")
_ALERTS = "monitoring.rules.alerts"
_OF_EVERY_ALERT = ("enabled", "for", "severity", "labels")


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
        *(f"| [{name}](values/{name}) | {sentence(text)} |" for name, text in heads),
        "",
        "## Values",
        "",
        "| value | default | meaning |",
        "|---|---|---|",
    ]
    for path, default in chart_values(yaml.safe_load(values), schema):
        shown = json.dumps(default)
        shown = f"`{shown}`" if len(shown) <= LONGEST_EXAMPLE else "see values.yaml"
        lines.append(f"| `{path}` | {shown} | {sentence(texts[path])} |")
    return "\n".join([*lines, *_alerts(yaml.safe_load(values), texts)]) + "\n"


def _alerts(values: Any, texts: Mapping[str, str]) -> Iterator[str]:
    """The alerts and their settings, one row for each alert."""
    yield from (
        "",
        "## Alerts",
        "",
        "A row is a value of `monitoring.rules.alerts`, with the defaults of its settings. Each",
        "also has `enabled`, which is true, and `labels`, which come on top of",
        "`monitoring.rules.alertLabels`. `for` is how long an alert must be true before it fires.",
        "A duration has one unit: s, m, h or d.",
        "",
        "| alert | `for` | `severity` | settings | true when |",
        "|---|---|---|---|---|",
    )
    for name, alert in values["monitoring"]["rules"]["alerts"].items():
        own = {k: v for k, v in alert.items() if k not in _OF_EVERY_ALERT}
        settings = ", ".join(f"`{k}: {v}`" for k, v in own.items())
        meaning = sentence(texts[f"{_ALERTS}.{name}"])
        yield f"| `{name}` | {alert['for']} | {alert['severity']} | {settings} | {meaning} |"


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
    """Every value with its default, but those of alerts; an affinity is one row."""
    for name, value in values.items():
        node = schema["properties"][name]
        below = f"{path}{name}"
        if below == _ALERTS:
            continue
        if "properties" in node and name != "affinity":
            yield from chart_values(value, node, f"{below}.")
        else:
            yield below, value
