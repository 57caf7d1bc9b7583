"""The simulator as a program: how commands start it, and how what it finds becomes pages."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import click

from bamboo_cli.errors import CommandError
from bamboo_cli.views.output_file import check_file, write_file

_PROGRAM = "bamboo_sim"


class Page(NamedTuple):
    """A page that an option asks for. ``path``: None if it does not; ``example``: a name of such a
    file; ``made``: from what the simulator found."""

    option: str
    path: Path | None
    example: str
    made: Callable[[Mapping[str, Any]], str]


def started(arguments: Sequence[str]) -> int:
    """The exit code. CommandError if the simulator is not installed."""
    if find_spec(_PROGRAM) is None:
        raise CommandError(
            "the simulator is not in this installation; install bamboo-train[cli] with pip, or run"
            " .venv/bin/bamboo in a checkout after scripts/setup."
        )
    return subprocess.run([sys.executable, "-m", f"{_PROGRAM}.market", *arguments]).returncode


def _last(sources: Sequence[str]) -> list[str]:
    """Names of files may begin with a dash."""
    return ["--", *sources] if sources else []


def shown(options: Sequence[str], sources: Sequence[str], pages: Sequence[Page]) -> int:
    """Start the simulator, and write the pages that are asked for; the exit code. CommandError if
    one cannot be written."""
    wanted = [page for page in pages if page.path is not None]
    for page in wanted:
        check_file(page.option, page.path, page.example)
    if not wanted:
        return started([*options, *_last(sources)])
    with TemporaryDirectory(prefix="bamboo-sim-") as folder:
        record = Path(folder) / "record.json"
        code = started([*options, f"--record={record}", *_last(sources)])
        if code:
            return code
        found = json.loads(record.read_text(encoding="utf-8"))
    for page in wanted:
        assert page.path is not None
        write_file(page.path, page.made(found))
        click.echo(f"The page is {page.path.resolve()}", err=True)
    return 0
