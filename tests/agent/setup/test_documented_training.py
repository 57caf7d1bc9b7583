"""The set-up accepts the examples of docs/schedules.md, and they have the effect that it says."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml

from bamboo_agent.model import FactoryError
from bamboo_agent.setup.factories import build_setup
from bamboo_core.api.spec import JobSpec, Precision
from bamboo_core.model.ids import AgentId
from bamboo_core.validation import server_rules
from bamboo_core.validation.reading import from_manifest

PAGE = (Path(__file__).resolve().parents[3] / "docs/schedules.md").read_text()
(SPEC,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.M | re.S)
CODE = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
MODULE = "documented_training"
GPT = "bamboo_agent.models.gpt:build"
TEXT = "bamboo_agent.datasets.text:build"


def read(**optimizer: Any) -> JobSpec:
    """The example, with another optimizer."""
    training = yaml.safe_load(SPEC)["training"]
    training |= {"globalBatchSize": 8}
    training["optimizer"] |= optimizer
    size = {"layers": 1, "width": 8, "heads": 2, "context": 8}
    manifest = {
        "metadata": {"name": "a"},
        "spec": {
            "model": {"factory": GPT, "args": size},
            "data": {"factory": TEXT, "args": {"context": 8, "limit_bytes": 2000}},
            "training": training,
            "pipelines": {"count": 1, "stages": 1},
            "worker": {"image": "none"},
        },
    }
    found = from_manifest(manifest, is_strict=True)
    assert isinstance(found, JobSpec), found
    assert server_rules.problems(manifest, found) == []
    return found


@pytest.fixture(autouse=True)
def code(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType(MODULE)
    module.__dict__["torch"] = torch
    monkeypatch.setitem(sys.modules, MODULE, module)
    for text in CODE:
        exec(text, vars(module))


@pytest.mark.parametrize(
    "optimizer",
    [
        {},
        {"factory": f"{MODULE}:optimizer"},
        {"schedule": {"factory": f"{MODULE}:schedule", "args": {"half_life": 10}}},
    ],
)
def test_an_example_is_accepted(optimizer: dict[str, Any]) -> None:
    spec = read(**optimizer)
    setup, profile = build_setup(AgentId("a"), spec, torch.device("cpu"))
    assert spec.training.precision is Precision.BFLOAT16
    assert {group for layer in setup.clip_groups for group in layer} == {0, 1}
    found = setup.builder.build(1)
    groups = [(group["weight_decay"], group["lr"]) for group in found.optimizer.param_groups]
    assert groups == [(0.0, 0.0003), (0.1, 0.0003)]
    assert len(profile.names[1]) == len(setup.clip_groups[1])


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        ({"groups": [{"parameters": ["*biass"]}]}, r"groups\[0\]\.parameters: '\*biass' matches"),
        (
            {"groups": [{"parameters": ["*bias"], "args": {"weight_decai": 0}}]},
            r"layer 1, Block: spec\.training\.optimizer\.groups\[0\]\.args: torch.optim:AdamW",
        ),
        ({"schedule": {"factory": f"{MODULE}:none"}}, f"'{MODULE}' has no 'none'"),
        (
            {"schedule": {"factory": "bamboo_agent.schedules:cosine"}},
            r"^spec\.training\.optimizer\.schedule: .*:cosine raised TypeError: .*'total_steps'",
        ),
        (
            {"schedule": {"factory": "bamboo_agent.schedules:linear", "args": {"total_steps": 0}}},
            "total_steps is 0; it must be more than warmup_steps, 0",
        ),
    ],
)
def test_what_is_wrong_is_named(optimizer: dict[str, Any], words: str) -> None:
    with pytest.raises(FactoryError, match=words):
        build_setup(AgentId("a"), read(**optimizer), torch.device("cpu"))
