"""Runs a policy on a fleet. Between two events nothing changes, so steps are counted, not visited:
a run costs time for its events only, and memory for its nodes and pauses only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bamboo_sim.market.simulation.events import (
    ADD,
    LOOK,
    READY,
    REMOVE,
    RESUME,
    FleetEvent,
    News,
    Node,
)
from bamboo_sim.market.simulation.outcome import (
    HOUR_MS,
    Activity,
    Outcome,
    Pause,
    Span,
    Spend,
    Use,
)
from bamboo_sim.market.simulation.policy import Change, Fleet, InventedWorkError, Pace, Policy

Watch = Callable[[Span], None]
"""Told of every time between two events, in order and without gaps."""

_NEVER = 1 << 62
_NOTHING = News(_NEVER, LOOK)
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Terms:
    """What a run is for, and what its nodes cost.

    ``samples``: the run ends when they are trained (0: it does not); ``until_ms``: or at this time;
    ``prices``: dollars per hour of a node by (zone, capacity); ``best_per_node``: the most samples
    per second that one node can add in any configuration, which no policy may exceed.
    """

    prices: Mapping[tuple[str, str], float]
    best_per_node: float
    samples: float = 0.0
    until_ms: int = _NEVER

    def __post_init__(self) -> None:
        if self.samples <= 0 and self.until_ms >= _NEVER:
            raise ValueError("a run needs an end; give samples or until_ms.")


def run(
    policy: Policy, events: Iterable[FleetEvent], terms: Terms, watch: Watch | None = None
) -> Outcome:
    """Run until the terms end it. ``events``: in order, and as many as it takes; if they end, the
    fleet stays as it is.

    InventedWorkError if the policy trains what its nodes cannot. ValueError if the fleet's last
    event has passed, nothing is to come, and the samples can never be reached, or if the fleet is
    out of order, or if a price is missing.
    """
    running = _Run(policy, terms, watch)
    coming = _together(events)
    waiting = next(coming, _NOTHING)
    while True:
        own = running.own
        news = own
        if waiting <= own:  # by time, then kind
            news, waiting = waiting, next(coming, _NOTHING)
        if news is _NOTHING and terms.until_ms == _NEVER and not running.trains:
            raise ValueError(
                f"the fleet ends at {running.now / HOUR_MS:.2f} h with"
                f" {running.fleet.samples:.0f} of {terms.samples:.0f} samples, and nothing trains;"
                " give until_ms or a longer trace."
            )
        if running.advance(news.at_ms):
            return running.outcome()
        running.apply(news)


def _together(events: Iterable[FleetEvent]) -> Iterator[News]:
    """Events of one kind at one instant are told together."""
    at_ms, kind, nodes = -1, ADD, list[Node]()
    for event_ms, event_kind, _, node in events:
        if event_ms == at_ms and event_kind is kind:
            nodes.append(node)
            continue
        if nodes:
            yield News(at_ms, kind, tuple(nodes))
        at_ms, kind, nodes = event_ms, event_kind, [node]
    if nodes:
        yield News(at_ms, kind, tuple(nodes))


def _out_of_order(news: News, node: Node) -> ValueError:
    return ValueError(
        f"{news.kind.name} of node {node.number} at {news.at_ms} ms is out of order; a node has one"
        " ADD, then READY at most once, then REMOVE at most once."
    )


class _Run:
    """The state of a run."""

    def __init__(self, policy: Policy, terms: Terms, watch: Watch | None) -> None:
        self.fleet = Fleet()
        self.now = 0
        self.own = _NOTHING
        """The next event that the run itself has."""
        self._policy, self._terms, self._watch = policy, terms, watch
        self._goal, self._until_ms = terms.samples, terms.until_ms
        self._state: Any = policy.start()
        self._pace: Pace | None = None
        self._look_ms, self._looks_at_step_end = _NEVER, False
        self._step_ended_ms = -1  # a step that ends with an event ends after it
        self._first_ms = -1
        self._most = 0.0  # samples, before any was lost
        self._by_price = 0.0
        self._uses = _Uses(terms.prices)
        self._trained_ms = self._repeated_ms = self._paused_ms = 0
        self._standing_ms = self._idle_ms = 0
        self._pauses: list[Pause] = []
        self._pause: tuple[int, str] | None = None
        self._removals = self._fatal = 0

    @property
    def trains(self) -> bool:
        """Samples are being added."""
        return self._pace is not None and self.fleet.resume_ms is None

    def _next_own(self) -> News:
        """The next event that the run itself has."""
        resume, look = self.fleet.resume_ms, self._look_ms
        if resume is not None:
            return News(resume, RESUME) if resume <= look else News(look, LOOK)
        if self._looks_at_step_end and self._pace is not None:
            left = int((1 - self.fleet.step_part) * self._pace.step_ms + _ROUNDING)
            step_end = self.now if self._step_ended_ms == self.now else self.now + left
            look = step_end if step_end < look else look
        return _NOTHING if look == _NEVER else News(look, LOOK)

    def advance(self, to_ms: int) -> bool:
        """Go on to the time of the next event. True: the run ends before, and that is now."""
        ms = to_ms - self.now
        if ms < 0:
            raise ValueError(f"an event at {to_ms} ms comes after one at {self.now} ms.")
        is_over = to_ms >= self._until_ms
        if is_over:
            ms = self._until_ms - self.now
        fleet, pace = self.fleet, self._pace
        before, again_ms = fleet.samples, self._repeated_ms
        if pace is not None and fleet.resume_ms is None:
            if self._goal and (missing := (self._goal - fleet.samples) / pace.samples) <= (
                ms / pace.step_ms
            ):
                ms, is_over = max(0, int(missing * pace.step_ms + 1 - _ROUNDING)), True
            self._train(ms, pace)
            if is_over and self._goal:
                fleet.samples = min(fleet.samples, self._goal)
        elif fleet.resume_ms is not None:
            self._paused_ms += ms
        elif fleet.ready:
            self._standing_ms += ms
        else:
            self._idle_ms += ms
        self._uses.add(ms)
        if self._watch is not None and ms:
            self._watch(self._span(ms, before, self._repeated_ms - again_ms))
        self.now += ms
        return is_over

    def _span(self, ms: int, before: float, again_ms: int) -> Span:
        """The time that :meth:`advance` has counted."""
        fleet = self.fleet
        if fleet.resume_ms is not None:
            activity = Activity.PAUSED
        elif self._pace is not None:
            activity = Activity.TRAINING
        else:
            activity = Activity.STANDING if fleet.ready else Activity.IDLE
        times = self.now, self.now + ms, activity, again_ms
        return Span(*times, before, fleet.samples, self._uses.dollars_per_hour)

    def _train(self, ms: int, pace: Pace) -> None:
        """Count the steps of a time; :meth:`advance` counts the time."""
        fleet = self.fleet
        step_ms, samples = pace
        if self._first_ms < 0:
            self._first_ms = self.now
        steps = ms / step_ms
        part = fleet.step_part + steps
        part -= int(part + _ROUNDING)
        fleet.step_part = part
        before = fleet.samples
        after = fleet.samples = before + steps * samples
        again = 0
        if self._most > before:
            again = min(ms, int((self._most - before) / samples * step_ms))
            self._repeated_ms += again
        if after > self._most:
            self._most = after
        self._trained_ms += ms - again
        rate = self._uses.dollars_per_hour
        if rate:
            self._by_price += steps * samples / rate
        if ms and part * step_ms < 1 - _ROUNDING * step_ms:
            self._step_ended_ms = self.now + ms

    def apply(self, news: News) -> None:
        """Change the fleet, tell the policy, and take its answer."""
        fleet, kind = self.fleet, news.kind
        if kind is ADD:
            for node in news.nodes:
                if node.number in fleet.booting or node.number in fleet.ready:
                    raise _out_of_order(news, node)
                fleet.booting[node.number] = node
                self._uses.come(node)
        elif kind is READY:
            for node in news.nodes:
                if fleet.booting.pop(node.number, None) is None:
                    raise _out_of_order(news, node)
                fleet.ready[node.number] = node
                self._uses.boot(node)
        elif kind is REMOVE:
            self._remove(news)
        elif kind is RESUME:
            self._end_pause()
        else:
            if self._looks_at_step_end and self.trains:
                self._round_step()
            self._look_ms, self._looks_at_step_end = _NEVER, False
            self._step_ended_ms = -1
        change = self._policy.on_change(self._state, fleet, news)
        if change is not None:
            self._take(change)
        if kind is REMOVE:
            serving = self._state.serving
            if any([node.number in serving for node in news.nodes]):
                raise InventedWorkError(f"a lost node serves on at {self.now} ms.")
        if change is not None or kind is RESUME or kind is LOOK:
            self.own = self._next_own()

    def _round_step(self) -> None:
        """A step that ends within a millisecond ends now: times are whole milliseconds."""
        assert self._pace is not None
        part = self.fleet.step_part
        missing = round(part) - part
        if abs(missing) * self._pace.step_ms <= 1:
            self.fleet.samples += missing * self._pace.samples
            self.fleet.step_part = 0.0

    def _remove(self, news: News) -> None:
        self._removals += len(news.nodes)
        for node in news.nodes:
            is_booting = self.fleet.booting.pop(node.number, None) is not None
            if not is_booting and self.fleet.ready.pop(node.number, None) is None:
                raise _out_of_order(news, node)
            self._uses.go(node, is_booting)

    def _take(self, change: Change) -> None:
        fleet = self.fleet
        if change.lost_samples or change.drops_step:
            self._lose(change)
        if change.state is not self._state:
            self._state = change.state
            self._uses.serve(change.state.serving, fleet.ready)
            self._pace = self._policy.rate(change.state)
            if self._pace is not None:
                self._check(self._pace, len(change.state.serving))
        if change.resume_ms != fleet.resume_ms:
            self._end_pause()
            if change.resume_ms is not None:
                if change.resume_ms < self.now:
                    raise InventedWorkError(f"a pause at {self.now} ms ends before it begins.")
                fleet.resume_ms = change.resume_ms
                self._pause = (self.now, change.cause)
        self._fatal += change.is_fatal
        self._look_ms = _NEVER if change.look_ms is None else max(change.look_ms, self.now)
        self._looks_at_step_end = change.looks_at_step_end

    def _lose(self, change: Change) -> None:
        lost = change.lost_samples
        if lost < 0:
            raise InventedWorkError(f"{-lost:.1f} samples at {self.now} ms were never computed.")
        if change.drops_step and self._pace is not None:
            lost += self.fleet.step_part * self._pace.samples
        if lost:
            self.fleet.step_part = 0.0
            self.fleet.samples = max(0.0, self.fleet.samples - lost)

    def _check(self, pace: Pace, nodes: int) -> None:
        rate = pace.samples / pace.step_ms * 1000
        most = nodes * self._terms.best_per_node
        if not 0 < rate <= most * (1 + _ROUNDING):
            raise InventedWorkError(
                f"{rate:.3f} samples/s at {self.now} ms, but {nodes} nodes compute {most:.3f}."
            )

    def _end_pause(self) -> None:
        if self._pause is not None:
            begun, cause = self._pause
            self._pauses.append(Pause(begun, self.now - begun, cause))
        self._pause = self.fleet.resume_ms = None

    def outcome(self) -> Outcome:
        """All of it, at the end."""
        self._end_pause()
        return Outcome(
            samples=self.fleet.samples,
            end_ms=self.now,
            first_ms=max(0, self._first_ms),
            node_ms=self._uses.totals(),
            dollars=self._uses.dollars(),
            activity_ms={
                Activity.TRAINING: self._trained_ms,
                Activity.REPEATING: self._repeated_ms,
                Activity.PAUSED: self._paused_ms,
                Activity.STANDING: self._standing_ms,
                Activity.IDLE: self._idle_ms,
            },
            pauses=tuple(self._pauses),
            removals=self._removals,
            fatal=self._fatal,
            samples_by_price=self._by_price,
        )


class _Group:
    """Nodes of one zone and capacity. ``now`` and ``total_ms`` by use, in the order of Use."""

    __slots__ = ("now", "price", "total_ms")

    def __init__(self, price: float) -> None:
        self.price = price
        self.now = [0, 0, 0]
        self.total_ms = [0, 0, 0]


_BOOTING, _STANDBY, _SERVING = range(3)


class _Uses:
    """How many nodes do what, now and added up."""

    def __init__(self, prices: Mapping[tuple[str, str], float]) -> None:
        self.dollars_per_hour = 0.0
        self.serving: frozenset[int] = frozenset()
        self._prices = prices
        self._groups: dict[tuple[str, str], _Group] = {}

    def come(self, node: Node) -> None:
        """A node is rented. ValueError if nobody knows what it costs."""
        group = self._groups.get(node[1:])
        if group is None:
            if node[1:] not in self._prices:
                raise ValueError(
                    f"no price for {node.capacity} nodes in zone {node.zone}; add one to prices."
                )
            group = self._groups[node[1:]] = _Group(self._prices[node[1:]])
        group.now[_BOOTING] += 1
        self._price()

    def boot(self, node: Node) -> None:
        """A node has booted."""
        self._move(node, _BOOTING, _STANDBY)

    def go(self, node: Node, is_booting: bool) -> None:
        """A node is gone."""
        use = _BOOTING if is_booting else _STANDBY
        if node.number in self.serving:
            use = _SERVING
            self.serving -= {node.number}
        self._groups[node[1:]].now[use] -= 1
        self._price()

    def serve(self, numbers: frozenset[int], ready: Mapping[int, Node]) -> None:
        """Other nodes serve from now on. InventedWorkError if one of them is not ready."""
        if numbers == self.serving:
            return
        if not numbers <= ready.keys():
            raise InventedWorkError(
                f"nodes {sorted(numbers - ready.keys())} serve, but are gone or not ready."
            )
        for number in numbers - self.serving:
            self._move(ready[number], _STANDBY, _SERVING)
        for number in self.serving - numbers:
            self._move(ready[number], _SERVING, _STANDBY)
        self.serving = numbers

    def _move(self, node: Node, before: int, after: int) -> None:
        now = self._groups[node[1:]].now
        now[before] -= 1
        now[after] += 1

    def _price(self) -> None:
        self.dollars_per_hour = sum([sum(g.now) * g.price for g in self._groups.values()])

    def add(self, ms: int) -> None:
        """Time passes."""
        for group in self._groups.values():
            now, total = group.now, group.total_ms
            total[_BOOTING] += now[_BOOTING] * ms
            total[_STANDBY] += now[_STANDBY] * ms
            total[_SERVING] += now[_SERVING] * ms

    def totals(self) -> dict[Spend, int]:
        """Node-milliseconds."""
        return {
            Spend(*key, use): ms
            for key, group in sorted(self._groups.items())
            for use, ms in zip(Use, group.total_ms, strict=True)
        }

    def dollars(self) -> dict[Spend, float]:
        """Their cost by spend, USD."""
        return {
            spend: ms / HOUR_MS * self._prices[spend.zone, spend.capacity]
            for spend, ms in self.totals().items()
        }
