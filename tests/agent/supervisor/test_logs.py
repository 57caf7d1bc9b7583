"""Log lines are JSON and carry who is speaking."""

from __future__ import annotations

import io
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bamboo_agent import logs
from bamboo_core.model.ids import Fence


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    out = io.StringIO()
    logs.configure(
        job="ns/job", agent="a-0", level="info", fence=lambda: Fence(1, 2, 3), stream=out
    )
    yield out
    root.handlers[:] = before
    root.setLevel(level)


def test_a_line(stream: io.StringIO) -> None:
    logging.getLogger("some.where").info("so %s", "it is", extra={"fields": {"peer": "b-0"}})
    line = json.loads(stream.getvalue())
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info",
        "logger": "some.where",
        "message": "so it is",
        "job": "ns/job",
        "agent": "a-0",
        "fence": "1.2.3",
        "peer": "b-0",
    }


def test_a_traceback_stays_in_one_line(stream: io.StringIO) -> None:
    try:
        raise ValueError("first\nsecond")
    except ValueError:
        logging.getLogger().exception("broken")
    (line,) = stream.getvalue().splitlines()
    assert "ValueError: first" in json.loads(line)["traceback"]


def test_texts_that_are_not_utf_8_become_escapes(stream: io.StringIO) -> None:
    name = os.fsdecode(b"caf\xe9.jpg")
    fields = {"file": name, "path": Path(name), "count": 3}
    try:
        raise ValueError(name)
    except ValueError:
        logging.getLogger().exception("cannot read %s", name, extra={"fields": fields})
    line = json.loads(stream.getvalue())
    plain = "caf\\udce9.jpg"
    assert line["message"] == f"cannot read {plain}"
    assert (line["file"], line["path"], line["count"]) == (plain, plain, 3)
    assert line["traceback"].endswith(f"ValueError: {plain}")


def test_the_level_holds(stream: io.StringIO) -> None:
    logging.getLogger().debug("a detail")
    assert not stream.getvalue()
