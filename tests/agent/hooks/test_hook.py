"""One hook: how it is fed, what is told when it fails, and when its process is started again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from bamboo_agent.hooks.backlog import MOST
from bamboo_agent.hooks.hook import START_S, STEP_S, Hook
from bamboo_agent.hooks.record import StepRecord
from bamboo_core.api.spec import FactorySpec


class FakeProcess:
    """A process that says what a test wants."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        self.says: list[bytes] = []
        self.code: int | None = None
        self.is_open = True
        self.is_closed = False

    def send(self, message: bytes) -> None:
        self.got.append(json.loads(message))

    def receive(self) -> list[bytes]:
        said, self.says = self.says, []
        return said

    def printed(self) -> bytes:
        return b""

    def ended(self) -> int | None:
        return self.code

    def kill(self) -> None:
        self.code = -9 if self.code is None else self.code

    def close(self) -> None:
        self.is_closed = True

    def say(self, **message: Any) -> None:
        self.says.append(json.dumps(message).encode())

    @property
    def steps(self) -> list[int]:
        return [message["step"]["step"] for message in self.got if "step" in message]


class Bench:
    """A hook with its processes, and the time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.processes: list[FakeProcess] = []
        self.fails = False
        self.hook = Hook(FactorySpec("pkg.trackers:build", {"x": 1}), self._start)
        self.hook.begin()

    def _start(self) -> FakeProcess:
        if self.fails:
            raise OSError("no processes")
        self.processes.append(FakeProcess())
        return self.processes[-1]

    @property
    def process(self) -> FakeProcess:
        return self.processes[-1]

    def turn(self, after_s: float = 0.1) -> None:
        self.now += after_s
        self.hook.turn(self.now)

    def add(self, steps: Sequence[int]) -> None:
        for step in steps:
            self.hook.add(StepRecord("ns/job", 1, step, 9, 1.0, 1.0))

    def ready(self) -> None:
        self.turn()
        self.process.say(ready=True)
        self.turn()


def test_the_process_gets_the_factory_then_the_records_then_the_end() -> None:
    bench = Bench()
    bench.add([0])
    bench.turn()
    assert bench.process.got == [{"factory": "pkg.trackers:build", "args": {"x": 1}}]
    bench.turn()
    assert bench.process.steps == []  # not before the factory has returned
    bench.process.say(ready=True)
    bench.turn()
    bench.hook.finish()
    bench.turn()
    assert bench.process.steps == [0]
    assert "close" not in bench.process.got[-1]  # not before all is told
    bench.process.say(told=True)
    bench.turn()
    assert bench.process.got[-1] == {"close": True}
    assert not bench.hook.is_idle
    bench.process.code = 0
    bench.turn()
    assert bench.hook.is_idle
    assert bench.process.is_closed
    assert (bench.hook.warning, bench.hook.untold) == ("", "")
    bench.turn(1000.0)
    assert len(bench.processes) == 1


def test_an_error_is_told_once_and_the_next_record_comes() -> None:
    bench = Bench()
    bench.ready()
    bench.add([0, 1])
    bench.turn()
    bench.process.say(told=True, error="ValueError: no")
    bench.process.say(told=True, error="KeyError: 'x'")
    bench.turn()
    assert bench.hook.warning == (
        "hooks: pkg.trackers:build raised ValueError: no in step 0; training goes on"
    )
    assert len(bench.processes) == 1
    bench.turn(STEP_S + 1)
    assert bench.process.code is None  # nothing is in flight


def test_a_process_that_ends_is_started_again_after_a_pause_with_what_it_left() -> None:
    bench = Bench()
    bench.ready()
    bench.add([0, 1])
    bench.turn()
    bench.process.say(told=True)
    bench.process.code = 7
    bench.turn()
    assert "ended its process with exit code 7" in bench.hook.warning
    bench.turn(0.5)
    assert len(bench.processes) == 1
    bench.turn(0.6)
    bench.process.say(ready=True)
    bench.turn()
    assert bench.process.steps == [1]


@pytest.mark.parametrize("is_ready", [True, False])
def test_a_process_that_hangs_is_killed(is_ready: bool) -> None:
    bench = Bench()
    limit_s = STEP_S if is_ready else START_S
    if is_ready:
        bench.ready()
        bench.add([0])
    bench.turn()
    bench.turn(limit_s - 1)
    assert bench.process.code is None
    bench.turn(2)
    assert bench.process.code == -9
    bench.turn()
    assert ("hung in a step" if is_ready else "hung in its start") in bench.hook.warning


def test_a_slow_hook_is_given_time_for_each_record() -> None:
    bench = Bench()
    bench.ready()
    bench.add([0, 1, 2])
    bench.turn()
    for _ in range(3):
        bench.turn(STEP_S - 1)
        bench.process.say(told=True)
        bench.turn()
    assert (bench.process.code, bench.hook.warning) == (None, "")


def test_what_can_never_work_is_not_started_again() -> None:
    bench = Bench()
    bench.add([0])
    bench.turn()
    bench.process.say(refused="returned a list without a method step(record)")
    bench.process.code = 1
    bench.turn()
    assert "returned a list" in bench.hook.warning
    assert bench.hook.is_idle
    bench.add([1])
    bench.turn(10_000.0)
    assert len(bench.processes) == 1


def test_a_factory_that_raises_is_called_again_later() -> None:
    bench = Bench()
    bench.turn()
    bench.process.say(failed="raised ConnectionError: down")
    bench.process.code = 1
    bench.turn()
    assert "raised ConnectionError: down" in bench.hook.warning
    bench.turn(1.1)
    assert len(bench.processes) == 2


def test_a_process_that_cannot_be_started_is_a_warning() -> None:
    bench = Bench()
    bench.fails = True
    bench.turn()
    assert "cannot be started: no processes" in bench.hook.warning
    bench.fails = False
    bench.turn(1.1)
    assert len(bench.processes) == 1


def test_a_hook_that_is_too_slow_loses_the_oldest_records_and_says_so() -> None:
    bench = Bench()
    bench.add(range(MOST + 1))
    assert "is too slow: 1 records were left out" in bench.hook.warning
    bench.ready()
    assert bench.process.steps[0] == 1


def test_a_process_that_hears_nothing_any_more_is_killed() -> None:
    bench = Bench()
    bench.ready()
    bench.process.is_open = False
    bench.turn()
    bench.turn(1.1)
    assert bench.process.code == -9


def test_a_process_that_has_closed_may_take_its_time_to_end() -> None:
    bench = Bench()
    bench.ready()
    bench.hook.finish()
    bench.turn()
    bench.process.is_open = False
    bench.turn(0.1)
    bench.turn(STEP_S - 1.0)
    assert (bench.process.code, bench.hook.warning) == (None, "")
    bench.turn(2.0)
    assert bench.process.code == -9


def test_what_it_says_that_is_no_message_is_ignored() -> None:
    bench = Bench()
    bench.ready()
    bench.process.says += [b"\xff", b"[1]", b"3"]
    bench.turn()
    assert (bench.process.code, bench.hook.warning) == (None, "")


def test_what_was_not_told_when_the_agent_ends_is_warned_of() -> None:
    bench = Bench()
    bench.add([3, 4])
    bench.turn()
    bench.hook.finish()
    bench.hook.abandon()  # its process has not become ready
    text = "was not told 2 records, from step 3 on, when the agent ended"
    assert text in bench.hook.warning
    assert bench.hook.untold.endswith(f" {text}")
    assert bench.process.is_closed


@pytest.mark.parametrize("code", [None, 0])
def test_a_close_that_has_not_returned_when_the_agent_ends_is_warned_of(code: int | None) -> None:
    bench = Bench()
    bench.ready()
    bench.hook.finish()
    bench.turn()
    assert bench.process.got[-1] == {"close": True}
    bench.process.code = code
    bench.hook.abandon()
    text = "did not return from close() before the agent ended"
    untold = f"pkg.trackers:build {text}" if code is None else ""
    assert bench.hook.untold == untold
    assert (text in bench.hook.warning) == bool(untold)
    assert bench.process.is_closed


def test_no_warning_if_all_was_told_when_the_agent_ends() -> None:
    bench = Bench()
    bench.turn()
    bench.hook.abandon()
    assert bench.process.is_closed
    assert bench.hook.warning == ""
