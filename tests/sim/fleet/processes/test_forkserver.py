"""Workers that are forked from one process share no random numbers and no module of a user's.

On nodes, agents are processes of their own. A fleet whose workers inherit one state of the
generators cannot see that a model draws from them before anything seeds them.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bamboo_sim.fleet.injection import state
from bamboo_sim.fleet.processes.forkserver import MAX_REQUEST
from bamboo_sim.fleet.switches import kill_switch

ROOT = Path(__file__).resolve().parents[4]
PROGRAM = """
import json, random, sys

import numpy as np
import torch

from bamboo_agent.worker import main as worker
from bamboo_sim.fleet.processes import forkserver
from bamboo_sim.workers import system_seeds


def instead_of_the_worker(arguments):
    before = sorted(sys.modules)
    told = system_seeds.told()
    import users_model

    said = {"modules": before, "told": told, "mask": users_model.build()}
    said["draws"] = [torch.rand(8).tolist(), np.random.rand(8).tolist(), random.random()]
    print(json.dumps(said), file=sys.stderr)
    return 0


worker.main = instead_of_the_worker
forkserver.main()
"""
MODEL = """
import torch


def build():
    mask = torch.rand(64) > 0.5  # before the layers are returned
    return mask.tolist()
"""
Facts = dict[str, Any]


@pytest.fixture
def fork(tmp_path: Path) -> Iterator[Callable[[str], Facts]]:
    """Has a worker forked, and returns what it found before anything ran that a user wrote."""
    (tmp_path / "users_model.py").write_text(MODEL)
    (tmp_path / "program.py").write_text(PROGRAM)
    state.write(tmp_path, state.State())
    path = tmp_path / "socket"
    server = subprocess.Popen(
        [sys.executable, str(tmp_path / "program.py"), str(path), str(os.getpid())],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        stdout=subprocess.PIPE,
    )
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"
    yield lambda agent: forked(path, agent, tmp_path)
    server.kill()
    server.communicate()


def forked(path: Path, agent: str, folder: Path) -> Facts:
    kill_switch.create(folder / agent)
    (folder / "samples").mkdir(exist_ok=True)
    environment = {
        "BAMBOO_AGENT": agent,
        "BAMBOO_FLEET_KILL_SWITCHES": str(folder),
        "BAMBOO_FLEET_SAMPLES": str(folder / "samples"),
        state.FOLDER_VARIABLE: str(folder),
    }
    request = {"agent": agent, "environment": environment, "supervisor": os.getpid()}
    ours, theirs = os.pipe()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.connect(str(path))
        socket.send_fds(client, [json.dumps(request).encode()], [theirs] * 4)
        os.close(theirs)
        with os.fdopen(ours) as errors:
            said = errors.read()
        client.recv(MAX_REQUEST)
        assert json.loads(client.recv(MAX_REQUEST)) == {"status": 0}, said
    facts: Facts = json.loads(said)
    return facts


def test_forked_workers_draw_other_numbers(fork: Callable[[str], Facts]) -> None:
    one, other = fork("a"), fork("b")
    for generator in ("torch", "numpy", "random"):
        assert one["told"][generator] != other["told"][generator], generator
    assert all(a != b for a, b in zip(one["draws"], other["draws"], strict=True))
    assert one["mask"] != other["mask"]
    assert one["told"]["hash"] == other["told"]["hash"]  # of the server: only ProcessFleet differs


def test_a_fork_has_no_module_of_a_user_s(fork: Callable[[str], Facts]) -> None:
    """Not even after another worker has imported it: the server itself imports nothing more."""
    first, second = fork("a"), fork("b")
    assert first["modules"] == second["modules"]
    named = ("users_", "bamboo_agent.models", "bamboo_agent.datasets", "tests")
    assert [name for name in first["modules"] if name.startswith(named)] == []
