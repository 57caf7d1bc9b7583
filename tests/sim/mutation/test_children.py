"""Children that end well, badly, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from .fresh import run


@pytest.mark.parametrize(
    ("work", "killed_by"),
    [
        ('say({"at": "a"})', ""),
        ('(say({"at": "a"}), say({"killed_by": "b::c"}))', "b::c"),
        ('(say({"at": "a"}), os._exit(3))', "crash: a"),
        ("1 / 0", "crash: start"),
        ('(say({"at": "a"}), os.kill(os.getpid(), signal.SIGXCPU))', "time-out: a"),
        (
            '(say({"at": "a"}), os.write(1, b"x"), say({"at": "b"}), signal.pause())',
            "time-out: b",
        ),
    ],
)
def test_what_killed(work: str, killed_by: str, tmp_path: Path) -> None:
    code = f"result = ended(lambda say: {work}, silence_s=0.2).killed_by"
    assert run(code, tmp_path) == killed_by


def test_several_at_once(tmp_path: Path) -> None:
    code = """
group = children.Children(2)
ours, theirs = os.pipe()
group.start("waits", lambda say: say({"killed_by": os.read(ours, 1).decode()}))
before = group.is_full
group.start("writes", lambda say: os.write(theirs, b"x"))
result = [before, group.is_full]
while group.is_running:
    result += [[e.key, e.killed_by] for e in group.ended()]"""
    before, full, *ends = run(code, tmp_path)
    assert (before, full) == (False, True)
    assert sorted(ends) == [["waits", "x"], ["writes", ""]]


def test_the_rest_is_ended(tmp_path: Path) -> None:
    code = """
group = children.Children(1)
group.start("waits", lambda say: signal.pause())
group.kill()
result = group.is_running"""
    assert run(code, tmp_path) is False
