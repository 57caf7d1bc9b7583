"""The commands in the docs: how they are found, and how each is checked.

A command runs in a test, or has a comment ``<!-- not run: reason -->`` before its block.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_BLOCK = re.compile(
    r"(?P<mark><!-- not run: (?P<reason>.+?) -->\n)?^ *```(?P<kind>bash|sh|console)\n"
    r"(?P<text>.*?)^ *```$",
    flags=re.M | re.S,
)


@dataclass(frozen=True)
class Command:
    """A command line of a page; ``reason``: why it is not run."""

    page: str
    text: str
    reason: str = ""


def pages(root: Path) -> list[Path]:
    """Everything that people read."""
    return [*sorted(root.glob("*.md")), *sorted((root / "docs").rglob("*.md"))]


def commands(root: Path) -> list[Command]:
    """Every command of every page, in order."""
    return [
        Command(str(page.relative_to(root)), line, block["reason"] or "")
        for page in pages(root)
        for block in _BLOCK.finditer(page.read_text())
        for line in _lines(block["kind"], block["text"])
    ]


def _lines(kind: str, text: str) -> list[str]:
    """Command lines without comments; of a console, those after a prompt."""
    joined = re.sub(r" *\\\n *", " ", text)
    found = []
    for line in joined.splitlines():
        bare = re.sub(r"(^|\s+)# .*$", "", line.strip())
        if kind == "console":
            bare = bare[2:] if bare.startswith("$ ") else ""
        if bare:
            found.append(bare)
    return found


RUN = frozenset(
    {
        ".venv/bin/python -m bamboo_core.planning.displays.show --help",
        ".venv/bin/python -m bamboo_core.planning.displays.show"
        " --stages 4 --microbatches 8 --split",
        ".venv/bin/python -m bamboo_core.planning.displays.show"
        " --stages 4 --pipelines 2 --microbatches 8 --lost 0,2",
        "scripts/gen-docs --check",
    }
)
"""Commands that test_commands.py executes as they are."""


@dataclass(frozen=True)
class Covered:
    """test: what runs the command, or the same work, in full; instead: what we execute here."""

    test: str
    instead: str = "true"


_CLUSTER = "tests/devcluster/e2e/test_lifetime_e2e.py::test_up_killed_up_twice_and_down_twice"
_EXPLORER = "tests/layout/test_benchmarks.py::test_the_explorer_refuses_what_it_cannot_do"
_COMPARE = "tests/sim/market/compare/test_command.py::test_a_second_process_prints_the_same_bytes"
_FIT = "tests/cli/commands/market/test_sim.py::test_a_fit_is_printed_and_its_market_written"
_KEPT = (
    "tests/e2e/test_quickstart.py::test_a_failed_job_fails_the_command_and_a_kept_cluster_is_usable"
)
_KUBECTL = "tests/kube/test_commands.py::test_commands_about_a_job"
_MARKET = (
    "tests/cli/commands/market/test_sim.py::test_the_table_says_what_is_assumed_and_what_is_fitted"
)
_MUTATION = "tests/sim/mutation/test_command.py::test_a_few_mutants_of_one_module"
_PLAN = "tests/cli/estimate/test_plan.py::test_json_has_the_whole_answer"
_QUICKSTART = "tests/e2e/test_quickstart.py::test_the_whole_quick_start"
_ADVISE = "tests/sim/market/advise/test_search.py::test_a_second_process_prints_the_same_bytes"
_RUN = "tests/cli/commands/market/test_sim.py::test_the_page_of_a_run_has_its_pauses"
_SCRIPTS = "tests/layout/test_scripts.py::test_scripts_can_be_run"
_TESTS = "tests/layout/test_scripts.py::test_ci_runs_the_readmes_test_command"

COVERED: dict[str, Covered] = {
    r"scripts/quickstart( --picture \S+)?": Covered(
        _QUICKSTART, ".venv/bin/bamboo quickstart --help"
    ),
    r"scripts/test": Covered(_TESTS, "bash -n scripts/test"),
    r"scripts/test (?P<folder>tests/\S+)": Covered(_TESTS, "test -d {folder}"),
    r"scripts/setup( && export PATH=\$PWD/\.venv/bin:\$PATH)?": Covered(
        _SCRIPTS, "bash -n scripts/setup"
    ),
    r"scripts/check( --fix)?": Covered(_SCRIPTS, "bash -n scripts/check"),
    r"scripts/explore": Covered(_EXPLORER, "scripts/explore --help"),
    r"\.venv/bin/python -m bamboo_sim\.protocol (?P<options>.*)": Covered(
        _EXPLORER, ".venv/bin/python -m bamboo_sim.protocol {options} --help"
    ),
    r"scripts/mutate(?P<options>( .*)?)": Covered(_MUTATION, "scripts/mutate{options} --help"),
    r"scripts/gen-docs": Covered(
        "tests/contract/test_reference.py::test_pages_are_what_the_code_says"
    ),
    r"(?P<run>\.venv/bin/python -P -m pytest tests/.*)": Covered(
        _TESTS, "{run} --collect-only --quiet -p no:cacheprovider"
    ),
    r"helm install (?P<options>bamboo charts/bamboo .*)": Covered(
        "tests/contract/test_chart.py::test_lint",
        "PATH=$PATH:$(.venv/bin/bamboo-devcluster binaries) helm template {options}",
    ),
    r"kubectl (apply|get|describe|wait|patch|logs|delete) .*": Covered(_KUBECTL),
    r"bamboo status .*": Covered(_KUBECTL, ".venv/bin/bamboo status --help"),
    r"bamboo explain .*": Covered("tests/cli/job/test_diagnosis.py::test_the_command"),
    r"bamboo top( .*)?": Covered("tests/cli/commands/test_top.py::test_the_command"),
    r"bamboo logs .*": Covered("tests/cli/commands/test_logs.py::test_the_command"),
    r"bamboo (?P<options>plan .*)": Covered(_PLAN, ".venv/bin/bamboo {options}"),
    r"bamboo (?P<options>sim paper-table.*)": Covered(_MARKET, ".venv/bin/bamboo {options} --help"),
    r"bamboo (?P<options>sim fit .*)": Covered(_FIT, ".venv/bin/bamboo {options} --help"),
    r"bamboo (?P<options>sim advise .*)": Covered(_ADVISE, ".venv/bin/bamboo {options} --help"),
    r"bamboo (?P<options>sim run .*)": Covered(_RUN, ".venv/bin/bamboo {options} --help"),
    r"bamboo (?P<options>sim compare .*)": Covered(_COMPARE, ".venv/bin/bamboo {options} --help"),
    r"(bamboo-devcluster (node )?(up|down|status|kill|add)|rm -r \"\$\{cluster%/cluster\}\").*": (
        Covered(_CLUSTER, ".venv/bin/bamboo-devcluster --help")
    ),
    r"cluster=\S+|export (KUBECONFIG|PATH)=\S+": Covered(_KEPT),
    r"export (PATH|KUBECONFIG)=\$\(bamboo-devcluster (binaries|kubeconfig)\b.*\S+": Covered(_KEPT),
}
"""Pattern of a command -> what covers it. The parts of a pattern go into ``instead``."""
