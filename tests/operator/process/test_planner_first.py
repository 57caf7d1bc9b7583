"""The event loop waits longer for its turn while the plan of a single job is made."""

import sys

import pytest

from bamboo_operator.process import planner_first


def test_one_planner_goes_first_and_two_do_not() -> None:
    usual_s = sys.getswitchinterval()
    with planner_first.going():
        assert sys.getswitchinterval() == pytest.approx(planner_first.SWITCH_S)
        with planner_first.going():
            assert sys.getswitchinterval() == pytest.approx(usual_s)
        assert sys.getswitchinterval() == pytest.approx(planner_first.SWITCH_S)
    assert sys.getswitchinterval() == pytest.approx(usual_s)


def test_a_planner_that_fails_goes_no_longer_first() -> None:
    usual_s = sys.getswitchinterval()
    with pytest.raises(ZeroDivisionError), planner_first.going():
        raise ZeroDivisionError
    assert sys.getswitchinterval() == pytest.approx(usual_s)
