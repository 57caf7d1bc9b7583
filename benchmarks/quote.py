"""Keep the figures in the docs equal to those under benchmarks/results.

    python benchmarks/quote.py

In the table of docs/benchmarks.md a row names a figure and its result file; the cells ``measured``,
``met`` and ``command`` are filled from them and from the goal. In other pages the comment
``<!-- figures of NAME -->`` begins a quotation, and the next heading ends it. There, the line
"Measured ..." and the second cell of every table row that begins with a figure's name are updated.
docs/reference/figures.md has all figures; scripts/gen-docs writes it.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "benchmarks.md"
OTHERS = tuple(DOCS / f"{name}.md" for name in ("buckets", "market", "transport", "verification"))
RESULTS = Path(__file__).parent / "results"
_HEADLINE = re.compile(
    r"^\| (?P<what>[^|]+) \| ?(?P<goal>[^|]*?) ?\|[^|]*\|[^|]*\| `(?P<figure>[\w.-]+)` \|"
    r" \[(?P<name>\w+)\]\(\.\./benchmarks/results/(?P=name)\.json\) \|[^|]*\|$"
)
_MARK = re.compile(r"^<!-- figures of ([\w.]+) -->$")
_ROW = re.compile(r"^\| `([\w.-]+)` \|[^|]*\|(.*)$")
_GOAL = re.compile(
    r"^(?:(?P<sign><=|<|>=|=) )?(?:(?P<factor>[\d.]+) x )?(?P<bound>[\d.,]+|`[\w.]+`)"
)
_RANGE = re.compile(r"^(?P<low>[\d.]+) to (?P<high>[\d.]+)")


def load(folder: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """Name -> result."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def headlines(page: str, results: Mapping[str, Mapping[str, Any]]) -> str:
    """The page with the results' figures in its table.

    ValueError: a row of the table cannot be read, or names an unknown result or figure.
    """
    out, above, in_table = list[str](), "", False
    for line in page.splitlines():
        if in_table and line.startswith("|"):
            row = _HEADLINE.match(line)
            if row is None:
                raise ValueError(f"this row names no figure of a result file: {line}")
            out.append(_headline(row, above, results))
            above = row["name"]
        else:
            in_table = bool(re.match(r"^\|-", line))
            out.append(line)
    return "\n".join(out) + "\n"


def _headline(row: re.Match[str], above: str, results: Mapping[str, Mapping[str, Any]]) -> str:
    name = row["name"]
    if name not in results:
        raise ValueError(f"{row['what']}: no benchmarks/results/{name}.json")
    figures = results[name]["figures"]
    value = json.dumps(_figure(name, figures, row["figure"]))
    met = {None: "", True: "yes", False: "**no**"}[is_met(row["goal"], row["figure"], figures)]
    command = "" if name == above else f"`{results[name]['command']}`"
    file = f"[{name}](../benchmarks/results/{name}.json)"
    cells = [row["what"], row["goal"], value, met, f"`{row['figure']}`", file, command]
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|"


def is_met(goal: str, figure: str, figures: Mapping[str, float]) -> bool | None:
    """Whether a figure meets a goal such as ``<= 0.1 x `step_s```; None without a goal."""
    if not goal:
        return None
    if span := _RANGE.match(goal):
        return float(span["low"]) <= figures[figure] <= float(span["high"])
    match = _GOAL.match(goal)
    if match is None:
        raise ValueError(f"the goal {goal} cannot be read")
    bound = match["bound"]
    limit = figures[bound.strip("`")] if bound[0] == "`" else float(bound.replace(",", ""))
    limit *= float(match["factor"] or 1)
    value = figures[figure]
    return {"<=": value <= limit, "<": value < limit, ">=": value >= limit}.get(
        match["sign"], value == limit
    )


def _figure(name: str, figures: Mapping[str, Any], figure: str) -> Any:
    if figure not in figures:
        raise ValueError(f"benchmarks/results/{name}.json has no figure `{figure}`")
    return figures[figure]


def marked(page: str, results: Mapping[str, Mapping[str, Any]]) -> str:
    """The page with the results' figures after each mark. ValueError as for :func:`headlines`."""
    out, name = list[str](), ""
    for line in page.splitlines():
        if mark := _MARK.match(line):
            name = mark[1]
            if name not in results:
                raise ValueError(f"figures of `{name}`: no benchmarks/results/{name}.json")
        elif line.startswith("#"):
            name = ""
        out.append(_quote(line, name, results[name]) if name else line)
    return "\n".join(out) + "\n"


def _quote(line: str, name: str, result: Mapping[str, Any]) -> str:
    if line.startswith("Measured"):
        machine = result["machine"]
        return (
            f"Measured at {result['commit']} on {machine['cores']} cores of {machine['cpu']},"
            f" load {machine['load_1m']}, by `{result['command']}`."
        )
    row = _ROW.match(line)
    if row is None:
        return line
    return f"| `{row[1]}` | {json.dumps(_figure(name, result['figures'], row[1]))} |{row[2]}"


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    results = load()
    PAGE.write_text(headlines(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")
    for page in OTHERS:
        page.write_text(marked(page.read_text(encoding="utf-8"), results), encoding="utf-8")


if __name__ == "__main__":
    main()
