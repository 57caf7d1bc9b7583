"""The garbage collector is off as long as anybody pauses it."""

import gc

import pytest

from bamboo_operator.process import gc_pause


def test_the_collector_returns_after_the_last_pause() -> None:
    assert gc.isenabled()
    with gc_pause.paused():
        with gc_pause.paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_the_collector_returns_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), gc_pause.paused():
        raise ZeroDivisionError
    assert gc.isenabled()
