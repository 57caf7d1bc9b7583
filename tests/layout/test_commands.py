"""Every command in the docs is executed, covered by a named test, or says why it is not run."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from tests.layout.commands import COVERED, RUN, Covered, commands

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = commands(ROOT)


def shell(line: str) -> None:
    done = subprocess.run(
        ["bash", "-ceuo", "pipefail", line], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"


def covering(text: str) -> list[tuple[re.Match[str], Covered]]:
    found = [(re.fullmatch(pattern, text), covered) for pattern, covered in COVERED.items()]
    return [(match, covered) for match, covered in found if match is not None]


def test_commands_are_found() -> None:
    texts = {command.text for command in COMMANDS}
    assert {"scripts/quickstart", "scripts/test", "kubectl get bj"} <= texts
    assert any(command.reason for command in COMMANDS)


def test_every_command_is_accounted_for() -> None:
    unknown = [
        f"{c.page}: {c.text}"
        for c in COMMANDS
        if not (c.reason or c.text in RUN or covering(c.text))
    ]
    assert unknown == [], "run it in a test (commands.py), or mark its block: not run: reason"


def test_nothing_is_accounted_for_that_is_not_in_the_docs() -> None:
    texts = [c.text for c in COMMANDS if not c.reason]
    assert [text for text in RUN if text not in texts] == []
    assert [p for p in COVERED if not any(re.fullmatch(p, text) for text in texts)] == []


@pytest.mark.parametrize("text", sorted(RUN))
def test_commands_run(text: str) -> None:
    shell(text)


@pytest.mark.parametrize("test", sorted({covered.test for covered in COVERED.values()}))
def test_covering_tests_exist(test: str) -> None:
    file, _, name = test.partition("::")
    assert re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text(), re.M)


def instead() -> set[str]:
    """What is executed in the place of commands that take long or need a cluster."""
    found = set()
    for command in COMMANDS:
        for match, covered in covering(command.text) if not command.reason else []:
            found.add(covered.instead.format(**match.groupdict()))
    return found - {"true"}


@pytest.mark.parametrize("line", sorted(instead()))
def test_commands_parse(line: str) -> None:
    shell(line)
