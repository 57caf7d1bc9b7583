"""The reader of a run's lines: what it gets, and what its loss does."""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import Iterator

import pytest

from bamboo_agent.local.reader import Announcement, Reader
from bamboo_core.api import local_run

LONG = local_run.Happened("Long", "x" * 300_000)  # more than a pipe holds


@pytest.fixture
def hung_up() -> Iterator[threading.Event]:
    """Set when this process gets SIGHUP."""
    event = threading.Event()
    before = signal.signal(signal.SIGHUP, lambda number, frame: event.set())
    yield event
    signal.signal(signal.SIGHUP, before)


def test_a_line_that_is_longer_than_a_pipe_comes_whole(hung_up: threading.Event) -> None:
    read, write = os.pipe()
    reader = Reader(write)
    writer = threading.Thread(target=reader.tell, args=[LONG])
    writer.start()
    with os.fdopen(read, encoding="utf-8") as lines:
        assert local_run.from_line(lines.readline()) == LONG
        writer.join()
        assert not hung_up.is_set()
    assert hung_up.wait(30)  # before SIGHUP is what it was


def test_a_reader_that_goes_is_noticed_while_nothing_is_written(hung_up: threading.Event) -> None:
    read, write = os.pipe()
    Reader(write)
    os.close(read)
    assert hung_up.wait(30)


def test_lines_without_a_reader_are_dropped(hung_up: threading.Event) -> None:
    read, write = os.pipe()
    reader = Reader(write)
    os.close(read)
    for _ in range(2):
        reader.tell(LONG)
    assert hung_up.wait(30)


def test_a_reader_that_goes_in_mid_line_is_noticed_by_the_writer(hung_up: threading.Event) -> None:
    read, write = os.pipe()
    writer = threading.Thread(target=Reader(write).tell, args=[LONG])
    writer.start()
    assert os.read(read, 10)
    os.close(read)
    writer.join(30)
    assert not writer.is_alive()
    assert hung_up.wait(30)


def test_an_announcement_is_told_again_and_again_until_it_ends() -> None:
    told: queue.Queue[local_run.Told] = queue.Queue()
    texts = iter(["", "a", "a", "", "b"])
    with Announcement(told.put, lambda: next(texts, "c"), again_s=0.001):
        found = [told.get(timeout=30) for _ in range(5)]
    left = told.qsize()
    assert [x.text for x in found if isinstance(x, local_run.Doing)] == ["a", "a", "b", "c", "c"]
    assert not [t for t in threading.enumerate() if t.name == "announcement"]
    assert told.qsize() == left


def test_what_is_told_from_two_threads_is_two_lines(hung_up: threading.Event) -> None:
    read, write = os.pipe()
    reader = Reader(write)
    writers = [threading.Thread(target=reader.tell, args=[LONG]) for _ in range(3)]
    for writer in writers:
        writer.start()
    with os.fdopen(read, encoding="utf-8") as lines:
        assert [local_run.from_line(lines.readline()) for _ in writers] == [LONG] * 3
    assert hung_up.wait(30)
