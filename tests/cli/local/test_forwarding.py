"""Signals to the command, and the program that it waits for."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cli.local.test_program import program, spec

from bamboo_cli.local import forwarding
from bamboo_core.api import local_run
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.spec import JobSpec

__all__ = ["spec"]

CATCHES = """
import signal
numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
def catch(): say(local_run.Happened("caught", str(int(signal.sigwait(numbers)))))
say(local_run.Happened("ready", str(os.getpgid(0))))
"""
ENDS = "catch(); say(local_run.Ended(Outcome.SUSPENDED, 'with a checkpoint'))"
"""After the first signal."""


@pytest.fixture(autouse=True)
def handlers() -> Iterator[list[object]]:
    """Before and after the test, and they must be the same. A shell that starts the tests in the
    background ignores signals, and the command would, too."""
    outer = {number: signal.signal(number, signal.SIG_DFL) for number in forwarding.NUMBERS}
    before = [signal.getsignal(number) for number in forwarding.NUMBERS]
    yield before
    assert [signal.getsignal(number) for number in forwarding.NUMBERS] == before
    for number, handler in outer.items():
        signal.signal(number, handler)


def kill_self(number: int) -> None:
    os.kill(os.getpid(), number)


def hear(told: Iterator[local_run.Told], act: Callable[[str], None]) -> list[local_run.Told]:
    """All that it tells until SystemExit. act: gets the reason of each thing that happens."""
    heard = []
    try:
        for one in told:
            heard.append(one)
            if isinstance(one, local_run.Happened):
                act(one.reason)
    except SystemExit as end:
        heard.append(end.code)  # type: ignore[arg-type]
    return heard


@pytest.mark.parametrize("number", forwarding.NUMBERS)
def test_a_signal_goes_to_the_program_and_the_command_waits(
    number: signal.Signals, spec: JobSpec, tmp_path: Path
) -> None:
    run = program(spec, tmp_path, CATCHES + ENDS)
    heard = hear(run.told(), lambda reason: kill_self(number) if reason == "ready" else None)
    assert heard[1:] == [
        local_run.Happened("caught", str(int(number))),
        local_run.Ended(Outcome.SUSPENDED, "with a checkpoint"),
        128 + number,
    ]


def test_a_second_signal_is_a_termination_and_one_right_after_the_first_is_none(
    spec: JobSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(forwarding.time, "monotonic", lambda: clock[0])

    def act(reason: str) -> None:
        if reason == "ready":
            kill_self(signal.SIGINT)
            clock[0] += 0.9 * forwarding.APART_S
            kill_self(signal.SIGTERM)  # as timeout(1) does it
            clock[0] += 0.2 * forwarding.APART_S
        elif clock[0] < 102:
            clock[0] = 102.0
            kill_self(signal.SIGINT)

    text = CATCHES + "catch(); catch(); sys.exit(9)"
    run = program(spec, tmp_path, text)
    heard = hear(run.told(), act)
    assert [x.message for x in heard[1:-1] if isinstance(x, local_run.Happened)] == ["2", "15"]
    assert heard[-1] == 128 + signal.SIGINT  # of the first; no error that no end was told
    assert run.code == 9


def test_the_program_is_in_no_group_that_a_terminal_signals(spec: JobSpec, tmp_path: Path) -> None:
    run = program(spec, tmp_path, CATCHES + ENDS)
    heard = hear(
        run.told(), lambda reason: kill_self(signal.SIGTERM) if reason == "ready" else None
    )
    assert isinstance(heard[0], local_run.Happened)
    assert heard[0].message != str(os.getpgid(0))


def test_what_was_ignored_stays_ignored(spec: JobSpec, tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        text = CATCHES + "say(local_run.Ended(Outcome.COMPLETE, ''))"
        run = program(spec, tmp_path, text)
        heard = hear(run.told(), lambda reason: kill_self(signal.SIGHUP))
    finally:
        signal.signal(signal.SIGHUP, before)
    assert heard[1:] == [local_run.Ended(Outcome.COMPLETE, "")]


def test_a_program_whose_lines_nobody_reads_sees_it_and_is_waited_for(
    spec: JobSpec, tmp_path: Path
) -> None:
    text = """
try:
    while True: say(local_run.Happened("more", "x" * 10_000))
except BrokenPipeError:
    os._exit(7)
"""
    run = program(spec, tmp_path, text)
    told = run.told()
    next(told)
    told.close()  # type: ignore[attr-defined]
    assert run.code == 7
