"""docs/reference/figures.md: every figure of every result file under benchmarks/results."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scripts.reference.text import NOTE, ROOT, sentence

Result = Mapping[str, Any]


def figures_page(folder: Path) -> str:
    """One section for each result file: the program, the command, the commit and the figures."""
    lines = [
        "# All figures",
        "",
        NOTE.replace("Edit the code", "Change a result file by a new run"),
        "Every figure of every file in `benchmarks/results`. [benchmarks.md](../benchmarks.md) has",
        "the most important ones with their goals, and says how to read them. A commit that ends",
        "with `+` had uncommitted changes. The load is that of the machine in the last minute of",
        "the run. A command belongs to its commit: the program may have another name today.",
    ]
    for path in sorted(folder.glob("*.json")):
        lines += _section(path.stem, json.loads(path.read_text(encoding="utf-8")))
    return "\n".join(lines) + "\n"


def measured(result: Result) -> str:
    """Commit, machine and command of a result, in one line."""
    machine = result["machine"]
    return (
        f"Measured at {result['commit']} on {machine['cores']} cores of {machine['cpu']},"
        f" load {machine['load_1m']}, by `{result['command']}`."
    )


def _section(name: str, result: Result) -> list[str]:
    lines = ["", f"## `{name}`", ""]
    if (program := _program(result["command"])) is not None:
        link = f"[{program}](../../{program})"
        lines += [f"{link}: {summary(ROOT / program)}", ""]
    lines += [measured(result), ""]
    if note := result.get("note"):
        lines += [_prose(note), ""]
    rows = [f"| `{figure}` | {json.dumps(x)} |" for figure, x in result["figures"].items()]
    return [*lines, "| figure | value |", "|---|---|", *rows]


def _program(command: str) -> Path | None:
    """The file that a command runs, or None if there is no such file any more."""
    match = re.match(r"python (?:(benchmarks/\w+\.py)|-m ([\w.]+))", command)
    if match is None:
        return None
    if match[1]:
        found = [ROOT / match[1]] if (ROOT / match[1]).exists() else []
    else:
        name = match[2].replace(".", "/")
        found = [*ROOT.glob(f"*/{name}.py"), *ROOT.glob(f"*/{name}/__main__.py")]
    return found[0].relative_to(ROOT) if found else None


def summary(program: Path) -> str:
    """The first paragraph of a program's docstring that is no command line."""
    text = ast.get_docstring(ast.parse(program.read_text(encoding="utf-8"))) or ""
    prose = (p for p in text.split("\n\n") if not re.match(r" |python -m|scripts/", p))
    return sentence(next(prose, ""))


def _prose(note: str) -> str:
    """A note as prose. Names of figures are marked as code, so that no ``_`` means emphasis."""
    return re.sub(r"(?<![\w`/])[\w*/.]*_[\w*/.]*\w\*?", r"`\g<0>`", note).rstrip(".") + "."
