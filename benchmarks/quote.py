"""Keep the figures in the docs equal to those under benchmarks/results.

    python benchmarks/quote.py

In docs/benchmarks.md each result has a section; a result without one gets one. In other pages the
comment ``<!-- figures of NAME -->`` begins a quotation, and the next heading ends it. In both, the
line "Measured ..." and the second cell of every table row that begins with a figure's name are
updated.
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
OTHERS = (DOCS / "transport.md", DOCS / "verification.md")
RESULTS = Path(__file__).parent / "results"
_HEADING = re.compile(r"^## `([\w.]+)`$")
_MARK = re.compile(r"^<!-- figures of ([\w.]+) -->$")
_ROW = re.compile(r"^\| `([\w.]+)` \|[^|]*\|(.*)$")


def load(folder: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """Name -> result."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def quoted(page: str, results: Mapping[str, Mapping[str, Any]]) -> str:
    """The page with the results' figures. ValueError if it names an unknown result or figure."""
    out, name = list[str](), ""
    for line in page.rstrip().splitlines():
        if heading := _HEADING.match(line):
            name = heading[1]
            if name not in results:
                raise ValueError(f"section `{name}` has no benchmarks/results/{name}.json")
        out.append(_quote(line, name, results[name]) if name else line)
    sections = {m[1] for m in map(_HEADING.match, out) if m}
    for name in sorted(results.keys() - sections):
        out += _section(name, results[name])
    return "\n".join(out) + "\n"


def marked(page: str, results: Mapping[str, Mapping[str, Any]]) -> str:
    """The page with the results' figures after each mark. ValueError as for :func:`quoted`."""
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
        return _measured(result)
    row = _ROW.match(line)
    if row is None:
        return line
    if row[1] not in result["figures"]:
        raise ValueError(f"benchmarks/results/{name}.json has no figure `{row[1]}`")
    return f"| `{row[1]}` | {json.dumps(result['figures'][row[1]])} |{row[2]}"


def _measured(result: Mapping[str, Any]) -> str:
    machine = result["machine"]
    return (
        f"Measured at {result['commit']} on {machine['cores']} cores of {machine['cpu']},"
        f" load {machine['load_1m']}, by `{result['command']}`."
    )


def _section(name: str, result: Mapping[str, Any]) -> list[str]:
    rows = [
        f"| `{figure}` | {json.dumps(value)} | |" for figure, value in result["figures"].items()
    ]
    table = ["| figure | value | goal |", "|---|---|---|", *rows]
    return ["", f"## `{name}`", "", _measured(result), "", *table]


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    results = load()
    PAGE.write_text(quoted(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")
    for page in OTHERS:
        page.write_text(marked(page.read_text(encoding="utf-8"), results), encoding="utf-8")


if __name__ == "__main__":
    main()
