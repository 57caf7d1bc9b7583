"""The queue against a model that looks at everything, and its waiting."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from bamboo_operator.reconcile.workqueue import Schedule, WorkQueue


class Model:
    """The same, by brute force."""

    def __init__(self) -> None:
        self.arrivals: list[set[str]] = []  # those of one set may come in any order
        self.due: dict[str, float] = {}
        self.working: set[str] = set()
        self.again: set[str] = set()

    def add(self, key: str) -> None:
        self.due.pop(key, None)
        if key in self.working:
            self.again.add(key)
        elif not self._is_ready(key):
            self.arrivals.append({key})

    def add_at(self, key: str, at: float) -> None:
        if not self._is_ready(key) and key not in self.again:
            self.due[key] = min(at, self.due.get(key, at))

    def take(self, now: float, expected: str | None) -> str | None:
        """Keys that come due together may come in any order: the expected one, if it fits."""
        for at in sorted({at for at in self.due.values() if at <= now}):
            together = {key for key, due in self.due.items() if due == at}
            self.due = {key: due for key, due in self.due.items() if due != at}
            self.again |= together & self.working
            self.arrivals.append(together - self.working)
        self.arrivals = [keys for keys in self.arrivals if keys]
        if not self.arrivals:
            return None
        key = expected if expected in self.arrivals[0] else min(self.arrivals[0])
        self.arrivals[0].discard(key)
        self.working.add(key)
        return key

    def done(self, key: str) -> None:
        self.working.discard(key)
        if key in self.again:
            self.again.discard(key)
            self.arrivals.append({key})

    def _is_ready(self, key: str) -> bool:
        return any(key in keys for keys in self.arrivals)


_KEYS = st.sampled_from("abc")
_STEPS = st.one_of(
    st.tuples(st.just("add"), _KEYS),
    st.tuples(st.just("add_at"), _KEYS, st.integers(0, 9)),
    st.tuples(st.just("take")),
    st.tuples(st.just("done"), _KEYS),
    st.tuples(st.just("pass"), st.integers(1, 3)),
)


@given(st.lists(_STEPS, max_size=40))
def test_like_the_model(steps: list[tuple[object, ...]]) -> None:
    schedule: Schedule[str] = Schedule()
    model = Model()
    now = 0.0
    for step in steps:
        match step:
            case ("add", str(key)):
                schedule.add(key)
                model.add(key)
            case ("add_at", str(key), int(at)):
                schedule.add_at(key, at)
                model.add_at(key, at)
            case ("take",):
                taken = schedule.take(now)
                assert taken == model.take(now, taken)
            case ("done", str(key)) if key in model.working:
                schedule.done(key)
                model.done(key)
            case ("pass", int(time)):
                now += time
        assert schedule.next_at() == min(model.due.values(), default=None)


async def test_a_key_has_one_worker_at_a_time() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    assert await queue.get() == "a"
    queue.add("a")
    second = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    assert not second.done()
    queue.done("a")
    assert await asyncio.wait_for(second, 5) == "a"


async def test_a_delayed_key_becomes_ready_by_itself() -> None:
    queue: WorkQueue[str] = WorkQueue()
    loop = asyncio.get_running_loop()
    began = loop.time()
    queue.add_after("a", 0.05)
    assert await asyncio.wait_for(queue.get(), 5) == "a"
    assert loop.time() - began >= 0.05


async def test_a_waiting_worker_gets_a_new_key() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("late", 1000)
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.add("now")
    assert await asyncio.wait_for(waiting, 5) == "now"
    assert len(queue) == 0
