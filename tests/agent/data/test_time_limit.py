"""A call of the data set that does not return is ended, and told by its sample."""

from __future__ import annotations

import signal
import threading
import time
from types import SimpleNamespace

import pytest
from tests.agent.data.sets import Samples

from bamboo_agent.data.batches import SampleError
from bamboo_agent.data.time_limit import NotReturnedError, time_limit
from bamboo_agent.worker.failures import in_mid_job
from bamboo_agent.worker.given import Given

NEVER_S = 100.0
REMEDY = "NotReturnedError: it has not returned for 0.05 s; give what it waits for a time-out"


@pytest.fixture(autouse=True)
def timer_of_the_test():
    """Whatever limits this test goes on after each block."""
    handler = signal.getsignal(signal.SIGALRM)
    yield
    assert signal.getsignal(signal.SIGALRM) is handler


@pytest.mark.parametrize(
    "wait", [lambda: time.sleep(NEVER_S), lambda: threading.Event().wait(NEVER_S)]
)
def test_what_does_not_return_raises(wait):
    with pytest.raises(NotReturnedError, match=r"for 0\.05 s; give"), time_limit(0.05):
        wait()


def test_the_time_begins_anew_and_ends_with_the_block():
    before = signal.getitimer(signal.ITIMER_REAL)[0]
    with time_limit(50.0) as begin:
        signal.setitimer(signal.ITIMER_REAL, 1.0)
        begin()
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 40.0
        signal.signal(signal.SIGALRM, signal.SIG_IGN)  # as the user's code may
        begin()
        assert callable(signal.getsignal(signal.SIGALRM))
    assert signal.getitimer(signal.ITIMER_REAL)[0] == pytest.approx(before, abs=1.0)


def test_a_timer_that_was_set_before_goes_on():
    with time_limit(50.0):
        with time_limit(60.0):
            pass
        assert 0.0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 50.0


def test_another_thread_has_no_limit():
    done = []

    def work():
        with time_limit(0.01) as begin:
            begin()
            done.append(1)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [1]


class Activity:
    """Writes down the samples."""

    reading_limit_s = 0.05

    def __init__(self):
        self.read, self.is_over = [], False

    def read_data(self, sample):
        self.read.append(sample)

    def go_on(self):
        self.is_over = True


@pytest.fixture
def activity():
    return Activity()


def reading(activity):
    return Given(SimpleNamespace(), SimpleNamespace(), activity).reading_data


def test_a_sample_that_does_not_come_is_an_error_of_the_user_s_code(data_of, activity):
    """So the job ends with a last write, as for any error in mid-job."""
    plain = data_of(Samples(lambda i: (1, 1)))
    late = plain.indices(3, 5)[1]
    data = data_of(Samples(lambda i: time.sleep(NEVER_S) if i == late else (1, 1)))
    with pytest.raises(SampleError) as caught:
        data.watched(reading(activity)).training(3, 5)
    text = str(caught.value)
    assert text.startswith(f"step 3, micro-batch 5: users_data:build, sample {late}: {REMEDY}")
    assert in_mid_job(caught.value) == text
    assert activity.read[-1] == late


def test_a_collate_that_does_not_return_is_told(data_of, activity):
    class Own(Samples):
        def collate(self, samples):
            time.sleep(NEVER_S)

    data = data_of(Own(lambda i: (1, 1)))
    with pytest.raises(SampleError, match=r"collate of .*: NotReturnedError: it has not returned"):
        data.watched(reading(activity)).training(3, 5)
    assert activity.read[-1] is None


def test_data_that_come_in_time_are_read_as_before(data_of, activity):
    data = data_of(Samples(lambda i: (1, 1)))
    data.watched(reading(activity)).training(3, 5)
    assert activity.read == [None, *data.indices(3, 5), None]
    assert activity.is_over
