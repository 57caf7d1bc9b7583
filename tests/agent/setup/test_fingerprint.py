"""The fingerprint tells code and data of jobs apart."""

from __future__ import annotations

import linecache
import os
import sys
from dataclasses import replace
from types import ModuleType

import pytest
import torch

from bamboo_agent.compute.layers import Use
from bamboo_agent.setup.factories import build_setup
from bamboo_agent.setup.fingerprint import code_hash, fingerprint, make_ready
from bamboo_agent.setup.products import products
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import Tie
from bamboo_sim.workers.jobs import tiny_gpt

CPU = torch.device("cpu")
AGENT = AgentId("a")


def test_fingerprints_tell_code_and_data_apart(monkeypatch):
    def of(spec):
        return fingerprint(spec, *build_setup(AGENT, spec, CPU))

    plain = of(tiny_gpt())
    args = {**tiny_gpt().data.args, "limit_bytes": 1700}
    other = of(replace(tiny_gpt(), data=replace(tiny_gpt().data, args=args)))
    assert plain == of(tiny_gpt())
    assert plain.data != other.data
    assert plain.code == other.code
    assert plain.spec != other.spec
    assert plain.device.startswith("cpu:")
    assert plain.threads == 1
    monkeypatch.setitem(sys.modules, "users_code", ModuleType("users_code"))
    assert code_hash("users_code:fine", "bamboo_agent.models.gpt:build") != plain.code


def test_the_digests_of_the_profile_and_of_the_processor_are_in_it():
    spec = tiny_gpt()
    setup, profile = build_setup(AGENT, spec, CPU)
    found = fingerprint(spec, setup, replace(profile, weights="w", outputs="o"))
    assert (found.weights, found.outputs, found.products) == ("w", "o", products(CPU))


def test_layers_with_many_parameters_in_common_say_so_once():
    """The operator takes some hundreds of ties."""
    spec = tiny_gpt()
    setup, profile = build_setup(AGENT, spec, CPU)
    uses = [(Use(0, f"w{i}", slice(i, i + 1)), Use(2, "w", slice(i, i + 1))) for i in range(300)]
    ready = make_ready(spec, setup, replace(profile, ties=tuple(uses)))
    assert ready.ties == (Tie((0, 2)),)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Users' code: models.py with the factory, which uses parts/blocks.py; its folder."""
    folder = tmp_path / "users_package"
    (folder / "parts").mkdir(parents=True)
    (folder / "parts/blocks.py").write_text("WIDTH = 1")
    (folder / "models.py").write_text("from .parts.blocks import WIDTH\ndef build(): pass")
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    for name in [name for name in sys.modules if name.startswith("users_package")]:
        del sys.modules[name]


def test_the_whole_package_of_a_factory_counts_as_code(package):
    name = "users_package.models:build"
    first = code_hash(name)
    assert code_hash(name) == first
    (package / "notes.txt").write_text("x")
    (package / ".#models.py").symlink_to("nowhere")
    assert code_hash(name) == first
    (package / "parts/blocks.py").write_text("WIDTH = 2")
    second = code_hash(name)
    assert second != first
    (package / "parts/blocks.py").rename(package / "parts/other.py")
    assert code_hash(name) not in (first, second)


def test_a_file_whose_name_is_not_utf_8_counts_as_code(package):
    name = "users_package.models:build"
    first = code_hash(name)
    (package / os.fsdecode(b"caf\xe9.py")).write_text("WIDTH = 2")
    assert code_hash(name) != first


@pytest.mark.parametrize(("count", "size"), [(501, 1), (5, 2**20)])
def test_of_a_large_package_the_factory_s_module_counts(package, count, size):
    for number in range(count):
        (package / f"generated_{number}.py").write_text("#" * size)
    name = "users_package.models:build"
    first = code_hash(name)
    (package / "parts/blocks.py").write_text("WIDTH = 2")
    assert code_hash(name) == first
    (package / "models.py").write_text("def build(): return 1")
    linecache.clearcache()
    assert code_hash(name) != first
