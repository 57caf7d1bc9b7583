"""Names that users write into specs, code and commands keep their paths for good.

The name of a factory is part of a job's identity: a job that began with it goes on only with it.
"""

from __future__ import annotations

import importlib
import importlib.util
import re

import pytest

from bamboo_agent.user_code import load_factory

PACKAGE = "bamboo_agent"
"""The names below stand without it: who renames a module by search must not rename them."""
FACTORIES = [
    "compute.optim:adamw",
    "datasets.huggingface:build",
    "datasets.text:build",
    "datasets.arrays:build",
    "datasets.tokens:build",
    "models.gnmt:build",
    "models.gpt:build",
    "models.torchvision:build",
    "models.transformers:build",
    "schedules:constant",
    "schedules:cosine",
    "schedules:linear",
]
IMPORTED = {
    "datasets.text": {"Windows", "build", "read_sources"},
    "model": {"Dataset", "FactoryError", "Model"},
    "models.gpt": {"Block", "Embedding", "Head", "build", "next_token_loss"},
}
COMMANDS = [
    "__main__",
    "node_watcher",
    "supervisor.launch",
    "worker.main",
    "worker.profile_job",
]


@pytest.mark.parametrize("name", FACTORIES)
def test_factories_that_specs_name(name):
    assert callable(load_factory(f"{PACKAGE}.{name}", seed=1))


@pytest.mark.parametrize("module", IMPORTED)
def test_what_the_code_of_users_imports(module):
    assert IMPORTED[module] <= set(dir(importlib.import_module(f"{PACKAGE}.{module}")))


@pytest.mark.parametrize("module", COMMANDS)
def test_modules_that_are_started_as_programs(module):
    assert importlib.util.find_spec(f"{PACKAGE}.{module}") is not None


def test_the_list_has_all_factories_of_examples_and_documents(pytestconfig):
    root = pytestconfig.rootpath
    paths = [root / "README.md", *root.glob("examples/**/*.yaml"), *root.glob("docs/**/*.md")]
    named = {x for path in paths for x in re.findall(rf"{PACKAGE}\.([\w.]+:\w+)", path.read_text())}
    assert named <= set(FACTORIES)
    assert named
