"""The set-up accepts and refuses the examples of docs/your-code.md as the page says."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from bamboo_agent.model import FactoryError
from bamboo_agent.setup.factories import build_setup
from bamboo_agent.setup.fingerprint import make_ready
from bamboo_core.api.spec import (
    DataSpec,
    JobSpec,
    ModelSpec,
    OptimizerSpec,
    PipelinesSpec,
    TrainingSpec,
    WorkerSpec,
)
from bamboo_core.model.ids import AgentId

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/your-code.md").read_text()
BLOCK = re.compile(r"^(?:<!-- refused: ([^\n]+) -->\n)?```python\n(.*?)^```$", re.M | re.S)
FIRST, *OTHERS = BLOCK.findall(PAGE)
MODULE = "documented_code"
OF_TORCH = {
    "does not have a deterministic implementation",
}
"""Words of Python and torch, which no line of ours has."""


def set_up(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything up to the Ready message, with the first example's names where others lack."""
    module = ModuleType(MODULE)
    monkeypatch.setitem(sys.modules, MODULE, module)
    for text in (FIRST[1], source):
        exec(text, vars(module))
    training = TrainingSpec(
        9, global_batch_size=16, micro_batch_size=4, optimizer=OptimizerSpec(f"{MODULE}:optimizer")
    )
    spec = JobSpec(
        model=ModelSpec(f"{MODULE}:build"),
        data=DataSpec(f"{MODULE}:Data"),
        training=training,
        pipelines=PipelinesSpec(1, 1),
        worker=WorkerSpec("none"),
        seed=7,
    )
    setup, profile = build_setup(AgentId("a"), spec, torch.device("cpu"))
    make_ready(spec, setup, profile)
    for step in range(8):
        setup.data.training(step, 0)


@pytest.mark.parametrize("source", [FIRST[1], *(text for words, text in OTHERS if not words)])
def test_an_example_is_accepted(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    set_up(source, monkeypatch)


@pytest.mark.parametrize(("words", "source"), [found for found in OTHERS if found[0]])
def test_an_example_is_refused(words: str, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FactoryError, match=re.escape(words)):
        set_up(source, monkeypatch)


def test_there_are_examples_of_both_kinds() -> None:
    assert sum(bool(words) for words, _ in OTHERS) >= 4
    assert sum(not words for words, _ in OTHERS) >= 8


def texts(path: Path) -> list[Any]:
    """All constant texts of a module; those that stand side by side are one."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return [x.value for x in nodes if isinstance(x, ast.Constant) and isinstance(x.value, str)]


def test_the_words_of_refusals_are_those_of_the_code() -> None:
    table = PAGE.split("| words | what to change |\n")[1]
    listed = re.findall(r"^\| `(.+?)` \|", table, re.M)
    assert len(listed) >= 30
    modules = (ROOT / "agent/bamboo_agent").rglob("*.py")
    code = "\n".join(text for path in modules for text in texts(path))
    assert {words for words in listed if words not in code} == OF_TORCH
