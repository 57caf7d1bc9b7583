"""Texts that leave a process are UTF-8, and are cut by bytes between two characters."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo_core.api import texts

ANY = st.text(st.characters(codec=None), max_size=40)
"""With lone surrogates."""


def test_bytes_of_a_file_s_name_become_escapes() -> None:
    assert texts.valid(os.fsdecode(b"/data/caf\xe9.jpg")) == "/data/caf\\udce9.jpg"
    assert texts.valid("\ud83d alone") == "\\ud83d alone"


@pytest.mark.parametrize("text", ["", "plain", "层", "\U0001f600", "é\t\n", "\u200d\xa0"])
def test_a_text_that_is_utf_8_stays_as_it_is(text: str) -> None:
    assert texts.valid(text) == text
    assert texts.cut(text, 1024) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("a\0b", "a\\x00b"),
        ("10%\r20%\r\n", "10%\\r20%\\r\n"),
        ("\x9b2J", "\\x9b2J"),
        ("\u202egnp.exe\u2069", "\\u202egnp.exe\\u2069"),
        ("a\u2028b", "a\\u2028b"),
        ("\udce9\x7f", "\\udce9\\x7f"),
    ],
)
def test_characters_that_change_what_a_terminal_shows_become_escapes(
    text: str, expected: str
) -> None:
    """Containers say what they like, and users read it with kubectl."""
    assert texts.plain(text) == texts.cut(text, 99) == texts.end(text, 99) == expected
    assert texts.plain(expected) == expected


def test_a_wire_s_text_keeps_its_characters() -> None:
    """It may be a name that must be found again."""
    assert texts.valid("a\x1b\u202e") == "a\x1b\u202e"


@pytest.mark.parametrize(
    ("text", "most", "expected"),
    [
        ("abcdef", 6, "abcdef"),
        ("abcdefg", 6, "abc..."),
        ("层层", 6, "层层"),
        ("层层a", 6, "层..."),
        ("a层层", 6, "a..."),
        ("\U0001f600" * 2, 7, "\U0001f600..."),
        ("\U0001f600" * 2, 6, "..."),
        ("层" * 700, 1024, "层" * 340 + "..."),
        ("a\udce9", 7, "a\\udce9"),
        ("a\udce9b", 7, "a\\ud..."),
    ],
)
def test_a_long_text_is_cut_between_two_characters(text: str, most: int, expected: str) -> None:
    assert texts.cut(text, most) == expected


@pytest.mark.parametrize("cut", range(1, 4))
def test_halves_of_characters_at_both_ends_are_left_out(cut: int) -> None:
    data = " boom 层😀 ".encode()
    kept = ("😀".encode() + data + "😀".encode())[cut:-cut]
    assert texts.whole(kept.decode(errors="replace")) == "boom 层😀"
    assert texts.whole("a\ufffdb") == "a\ufffdb"


@given(ANY, st.integers(3, 60))
def test_every_text_is_valid_and_fits(text: str, most: int) -> None:
    valid, cut, end = texts.plain(text), texts.cut(text, most), texts.end(text, most)
    assert valid.encode().decode() == valid
    assert max(len(cut.encode()), len(end.encode())) <= most
    if len(valid.encode()) <= most:
        assert cut == end == valid
    else:
        assert cut.endswith("...")
        assert valid.startswith(cut.removesuffix("..."))
        assert end.startswith("...")
        assert valid.endswith(end.removeprefix("..."))
        assert len(cut.encode()) > most - 4  # no character more would fit


def test_a_line_of_a_log_is_json_for_strict_readers() -> None:
    said = {"message": "caf\udce9", "file": Path("\ud800"), "count": 1, "層": "\U0001f600"}
    said |= {"files": ["a\udce9", ("b\udce9", None)], "of": {"\udce9": {"x": "\udce9"}}}
    line = json.loads(texts.as_json(said))
    assert line == {
        "message": "caf\\udce9", "file": "\\ud800", "count": 1, "層": "\U0001f600",
        "files": ["a\\udce9", ["b\\udce9", None]], "of": {"\\udce9": {"x": "\\udce9"}},
    }  # fmt: skip
