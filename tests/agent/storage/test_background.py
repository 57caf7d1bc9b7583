"""The threads of the storage."""

from __future__ import annotations

import select

import pytest

from bamboo_agent.storage.background import Background

DEADLINE_S = 60.0


def test_what_a_job_raises_reaches_the_owner():
    thread = Background[int]("test")
    thread.submit(lambda: 1 // 0)
    assert select.select([thread], [], [], DEADLINE_S)[0]
    with pytest.raises(ZeroDivisionError):
        thread.poll()
    assert not thread.is_busy
    thread.submit(lambda: 7)
    assert thread.is_busy
    assert select.select([thread], [], [], DEADLINE_S)[0]
    assert thread.poll() == [7]
    thread.close()
