"""What a hook prints goes to the agent's log in whole lines, and a flood does not."""

from __future__ import annotations

from bamboo_agent.hooks.printed import MOST_LINE_BYTES, MOST_LINES, SPAN_S, Printed


def test_lines_are_whole_and_short() -> None:
    printed = Printed()
    assert printed.lines(b"one\ntw", 0.0) == ["one"]
    assert printed.lines(b"o\n\n", 1.0) == ["two"]
    (long,) = printed.lines(b"x" * 9999 + b"\n", 2.0)
    assert len(long) == MOST_LINE_BYTES
    assert printed.lines(b"y" * 9999, 3.0) == []  # not a whole line yet
    assert [len(x) for x in printed.lines(b"y\n", 4.0)] == [MOST_LINE_BYTES]


def test_a_flood_is_counted() -> None:
    printed = Printed()
    assert len(printed.lines(b"line\n" * 1000, 0.0)) == MOST_LINES
    assert printed.lines(b"line\n", 1.0) == []
    assert printed.lines(b"more\n", SPAN_S) == [
        f"({1001 - MOST_LINES} lines were left out)",
        "more",
    ]
