"""The answers to the questions of `questions.toml` are files that exist."""

from __future__ import annotations

import tomllib
from pathlib import Path


def test_answers_exist(root: Path) -> None:
    text = Path(__file__).with_name("questions.toml").read_text()
    questions = tomllib.loads(text)["question"]
    assert len(questions) >= 10
    assert len({question["asks"] for question in questions}) == len(questions)
    assert all(question["files"] for question in questions)
    missing = [
        name for question in questions for name in question["files"] if not (root / name).is_file()
    ]
    assert missing == []
