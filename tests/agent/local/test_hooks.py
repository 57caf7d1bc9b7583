"""spec.hooks in real runs: one agent at a time tells every step, and nothing disturbs training."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from tests.agent.local.runs import Run, job, written

from bamboo_agent.hooks.record import NOT_TOLD
from bamboo_core.api import local_run
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.spec import FactorySpec, JobSpec, Json

pytestmark = pytest.mark.timeout(600)

CODE = """
    import os
    import time

    class Writes:
        def __init__(self, file):
            self.file = open(file, "a", buffering=1)

        def step(self, record):
            words = os.environ["BAMBOO_AGENT"], record.attempt, record.step, record.loss
            print(*words, file=self.file)

        def close(self):
            print(os.environ["BAMBOO_AGENT"], "closed", file=self.file)

    class Raises:
        def step(self, record):
            raise ValueError("no room")

    class Hangs:
        def step(self, record):
            time.sleep(3600)

    class Exits:
        def step(self, record):
            os._exit(7)

    class Prints:
        def step(self, record):
            while True:
                print("xxxxx" + 1000 * "y")

    class Fills:
        def step(self, record):
            self.much = []
            while True:
                self.much.append(bytearray(1 << 28))

    def unreachable():
        raise ConnectionRefusedError("the server is down")

    class Empty:
        pass
"""
STEPS = 100
GO_ON = "training goes on"
FIRST = "agent-0"
"""The coordinator of the first plan: its name sorts before all others."""


def hooked(folder: Path, *hooks: FactorySpec, steps: int = 8) -> JobSpec:
    return replace(job(folder, steps=steps), hooks=hooks)


def mine(name: str, **args: Json) -> FactorySpec:
    return FactorySpec(f"mine:{name}", args)


def agent_process(run: Run, agent: str) -> int:
    """The process of a run's agent."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            words = (folder / "environ").read_bytes().split(b"\0")
            if int(parent) == run.process.pid and f"BAMBOO_AGENT={agent}".encode() in words:
                return int(folder.name)
    raise AssertionError(f"{agent} does not run")


@pytest.fixture
def code(tmp_path: Path) -> Path:
    return written(tmp_path / "code", CODE)


def test_every_step_is_told_in_order_by_one_agent_at_a_time_although_it_is_lost(
    tmp_path: Path, code: Path
) -> None:
    file = tmp_path / "steps"
    file.touch()
    spec = hooked(tmp_path, mine("Writes", file=str(file)), mine("Raises"), steps=STEPS)
    run, is_killed = Run(spec, tmp_path, code=code), False
    for told in run:
        if isinstance(told, local_run.Step) and not is_killed and len(file.read_text()) > 300:
            is_killed = True
            os.kill(agent_process(run, FIRST), signal.SIGKILL)
    assert run.process.wait() == 0, run.told
    assert is_killed
    lines = [line.split() for line in file.read_text().splitlines()]
    agents = [agent for agent, *_ in lines]
    tellers = [a for i, a in enumerate(agents) if i == 0 or agents[i - 1] != a]
    assert len(tellers) == len(set(tellers)) == 2
    assert tellers[0] == FIRST
    *steps, closed = lines
    assert closed == [tellers[1], "closed"]
    for teller in tellers:
        own = [int(step) for agent, _, step, _ in steps if agent == teller]
        assert own == list(range(own[0], own[-1] + 1))  # in order, each once
    wanted = {x.step: str(x.loss) for x in run.all_of(local_run.Step)}
    assert {int(step): loss for _, _, step, loss in steps} == wanted | {STEPS: "None"}
    warnings = [x.message for x in run.all_of(local_run.Happened) if x.reason == "HookFailed"]
    assert warnings == [
        f"{FIRST}: hooks: mine:Raises raised ValueError: no room in step 0; {GO_ON}"
    ]


BAD = {
    "Raises": "raised ValueError: no room in step 0",
    "Exits": "ended its process with exit code 7",
    "Fills": "raised MemoryError",
    "unreachable": "raised ConnectionRefusedError: the server is down",
    "Empty": "returned a Empty without a method step(record)",
    "Hangs": "",
    "Prints": "",
}


def test_bad_hooks_change_no_bit_and_disturb_neither_training_nor_each_other(
    tmp_path: Path, code: Path
) -> None:
    alone = Run(job(tmp_path / "alone"), tmp_path / "alone")
    assert alone.to_end() == 0
    file = tmp_path / "steps"
    spec = hooked(tmp_path / "run", *map(mine, BAD), mine("Writes", file=str(file)))
    run = Run(spec, tmp_path / "run", code=code)
    assert run.to_end() == 0, run.told
    assert run.ended.digest == alone.ended.digest
    assert [x.step for x in run.all_of(local_run.Step)] == list(range(8))
    assert "AgentEnded" not in [x.reason for x in run.all_of(local_run.Happened)]
    log = (tmp_path / "run" / "logs" / f"{FIRST}.log").read_text()
    said = {hook: f"hooks: mine:{hook} {words}" in log for hook, words in BAD.items() if words}
    # on a busy machine some of so many processes do not begin before the run ends
    late = [hook for hook in said if f"hooks: mine:{hook} {NOT_TOLD}" in log]
    assert any(said.values())
    assert all(said[hook] or hook in late for hook in said)
    assert log.count("xxxxx") < 50
    told = [int(line.split()[2]) for line in file.read_text().splitlines() if "closed" not in line]
    assert told == list(range(9))


@pytest.mark.parametrize(
    ("hook", "words"),
    [
        (FactorySpec("nowhere:build"), "spec.hooks[0]: cannot import 'nowhere'"),
        (FactorySpec("mine:missing"), "spec.hooks[0]: module 'mine' has no 'missing'"),
        (FactorySpec("mine:os"), "spec.hooks[0]: 'mine:os' is not a function"),
        (
            mine("Writes", path="x"),
            "spec.hooks[0]: mine:Writes cannot be called with args ['path']: missing a required"
            " argument: 'file'",
        ),
    ],
)
def test_a_hook_that_can_never_work_is_refused_by_name(
    hook: FactorySpec, words: str, tmp_path: Path, code: Path
) -> None:
    run = Run(hooked(tmp_path, hook), tmp_path, code=code)
    assert run.to_end() == 1
    assert run.ended.outcome is Outcome.FAILED
    assert words in run.ended.message
    assert not run.all_of(local_run.Fleet)
