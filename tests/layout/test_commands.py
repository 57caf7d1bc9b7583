"""Every command in the docs is executed, covered by a named test, or says why it is not run."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from tests.layout.commands import COVERED, RUN, Covered, commands, pages

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
    """Commands that run in the place of those that take long or need a cluster."""
    found = set()
    for command in COMMANDS:
        for match, covered in covering(command.text) if not command.reason else []:
            found.add(covered.instead.format(**match.groupdict()))
    return found - {"true"}


@pytest.mark.parametrize("line", sorted(instead()))
def test_commands_parse(line: str) -> None:
    shell(line)


def inline() -> list[tuple[str, str]]:
    """(page, command) for commands of this checkout within sentences, but for those that a result
    was once measured with."""
    python = r"(?:\.venv/bin/)?python (?:-m )?[\w./]+(?: [^`]*)?"
    program = rf"`({python}|(?:scripts|benchmarks)/[\w-]+(?:\.py)?[^`/]*)`"
    return [
        (page.name, text)
        for page in pages(ROOT)
        for line in page.read_text().splitlines()
        if not line.startswith("Measured at ")
        for text in re.findall(program, line)
    ]


@pytest.mark.parametrize(("page", "text"), sorted(set(inline())))
def test_commands_in_sentences_name_what_exists(page: str, text: str) -> None:
    words = text.replace(".venv/bin/", "").removeprefix("python ").split()
    if words[0] == "-m":
        name = words[1].replace(".", "/")
        found = [*ROOT.glob(f"*/{name}.py"), *ROOT.glob(f"*/{name}/__main__.py")]
    else:
        found = [path for path in [ROOT / words[0]] if path.exists()]
    assert found, f"{page}: {text}"
    options = [word for word in words if word.startswith("--")]
    source = found[0].read_text() if found[0].is_file() else ""
    if words[0] in ("scripts/explore", "scripts/quickstart"):  # they pass options on
        source += (ROOT / "sim/bamboo_sim/protocol/__main__.py").read_text()
        source += (ROOT / "cli/bamboo_cli/commands/quickstart.py").read_text()
    if words[0] == "scripts/mutate":
        source += (ROOT / "sim/bamboo_sim/mutation/__main__.py").read_text()
    assert [option for option in options if option not in source] == [], f"{page}: {text}"
