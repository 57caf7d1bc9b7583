"""What all systems are given alike: fleets, model, network, prices, and what follows from them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib.resources import files
from itertools import takewhile
from math import ceil
from statistics import fmean
from typing import Any

from bamboo_sim.market.markets.opening import Replay, opened
from bamboo_sim.market.markets.parameters import MarketError
from bamboo_sim.market.policies.base.formula import Formula
from bamboo_sim.market.policies.base.job import Common, Job, common
from bamboo_sim.market.simulation.events import ADD, READY, REMOVE, FleetEvent, Node
from bamboo_sim.market.simulation.outcome import HOUR_MS
from bamboo_sim.market.simulation.step_times import StepTimes
from bamboo_sim.market.step_times.models import GPT2_P3, PAPER, ModelProfile
from bamboo_sim.market.step_times.networks import Network

SPOT, ON_DEMAND = "spot", "on-demand"
_MOST_NODES = 128
_PARAMETER_BYTES = 4

Prices = Mapping[tuple[str, str], float]


@cache
def assumptions() -> dict[str, dict[str, dict[str, Any]]]:
    """Group -> name -> value, unit and source; prices also have a date."""
    text = files("bamboo_sim.market.compare").joinpath("assumptions.json")
    read: dict[str, dict[str, dict[str, Any]]] = json.loads(text.read_text(encoding="utf-8"))
    return read


def models() -> dict[str, ModelProfile]:
    """Name -> model, for which it is known into how many stages it must be cut."""
    known = {**PAPER, GPT2_P3.name: GPT2_P3}
    return {name: known[name] for name in assumptions()["models"]}


@dataclass(frozen=True)
class Fleets:
    """Fleets of one source, one for each seed, cut at ``until_ms``."""

    name: str
    events: tuple[tuple[FleetEvent, ...], ...]
    until_ms: int
    prices: Prices
    are_prices_recorded: bool

    @cached_property
    def nodes(self) -> int:
        """The most that are ready at once."""
        return max(map(_most_ready, self.events))

    @cached_property
    def mean_gap_ms(self) -> int:
        """Between instants with losses, as those who set intervals by it are told it."""
        instants = fmean(
            len({event.at_ms for event in events if event.kind is REMOVE}) for events in self.events
        )
        return round(self.until_ms / max(1.0, instants))

    @property
    def removals(self) -> float:
        """Nodes that go, the mean over fleets."""
        return fmean(sum(event.kind is REMOVE for event in events) for events in self.events)


def fleets(
    what: str, *, seeds: int, hours: float, price: float | None = None, first: int = 1
) -> Fleets:
    """The fleets of a recorded trace or a market, with as many seeds, from ``first`` on.

    ``hours``: the longest time; a trace ends where its file ends. ``price``: dollars per hour of a
    spot node, where the file has none; None: that of assumptions.json. TraceError or MarketError as
    in ``opened``; MarketError if it never has two nodes, or far more than a job of ours.
    """
    source = opened(what)
    until_ms, recorded = round(hours * HOUR_MS), {}
    if isinstance(source, Replay):
        until_ms = min(until_ms, source.trace.end_ms - source.trace.begin_ms)
        recorded = {key: found.mean for key, found in source.prices.items()}
    made = tuple(
        tuple(takewhile(lambda event: event.at_ms < until_ms, source.events(seed)))
        for seed in range(first, first + seeds)
    )
    kinds = {event.node[1:] for events in made for event in events}
    of = {name: found["value"] for name, found in assumptions()["prices"].items()}
    of |= {} if price is None else {SPOT: price}
    prices = {kind: recorded.get(kind, of[kind[1]]) for kind in sorted(kinds)}
    found = Fleets(what, made, until_ms, prices, bool(recorded))
    if not 2 <= found.nodes <= _MOST_NODES:
        raise MarketError(
            f"{what} has at most {found.nodes} nodes at once; give one with 2 to {_MOST_NODES}."
        )
    return found


def on_demand(nodes: int, boot_ms: int) -> Iterator[FleetEvent]:
    """A fleet that stays as it is."""
    made = [Node(number, "on demand", ON_DEMAND) for number in range(1, nodes + 1)]
    for at_ms, kind in ((0, ADD), (boot_ms, READY)):
        for node in made:
            yield FleetEvent(at_ms, kind, node.number, node)


def _most_ready(events: Sequence[FleetEvent]) -> int:
    ready, most = set[int](), 0
    for event in events:
        if event.kind is READY:
            ready.add(event.node.number)
        elif event.kind is REMOVE:
            ready.discard(event.node.number)
        most = max(most, len(ready))
    return most


@dataclass(frozen=True)
class Setting:
    """One comparison. ``stages``: of systems that keep their depth, 0: that of the fastest grid;
    ``notice_ms``: before each loss, 0: none; ``patterns``: of equally many empty seats, over which
    a step is the mean; ``device``: on which a user's own model was measured; ``on_demand_price``:
    dollars per hour, None: that of assumptions.json. MarketError: the model needs more nodes or
    micro-batches, or no such depth is possible."""

    fleets: Fleets
    profile: ModelProfile
    network: Network
    fewest_stages: int
    stages: int = 0
    notice_ms: int = 0
    patterns: int = 2
    device: str = ""
    on_demand_price: float | None = None

    def __post_init__(self) -> None:
        if self.fleets.nodes < self.fewest_stages:
            raise MarketError(
                f"{self.fleets.name} has at most {self.fleets.nodes} nodes at once, and"
                f" {self.profile.name} needs {self.fewest_stages} stages; give a larger fleet."
            )
        if (microbatches := self.profile.microbatches) < self.pipelines:
            raise MarketError(
                f"a step of {self.profile.name} has {microbatches} micro-batches, and a fleet of"
                f" {self.fleets.nodes} nodes has up to {self.pipelines} pipelines; give a"
                f" --global-batch of {self.pipelines * self.profile.samples_each} or more."
            )
        most = min(self.fleets.nodes, len(self.profile.layers))
        if self.stages and not self.fewest_stages <= self.stages <= most:
            raise MarketError(
                f"--stages is {self.stages}, and {self.profile.name} can have {self.fewest_stages}"
                f" to {most} on {self.fleets.nodes} nodes; give one of these."
            )

    def at_depth(self, stages: int) -> Setting:
        """The same with another depth."""
        return replace(self, stages=stages)

    @property
    def model(self) -> ModelProfile:
        """The model, with as many pipelines as any system may ask for."""
        return replace(self.profile, pipelines=self.pipelines)

    @property
    def pipelines(self) -> int:
        """The most that any system may ask for: also with empty seats."""
        return ceil(self.fleets.nodes / self.fewest_stages)

    @property
    def steady_price(self) -> float:
        """Dollars per hour of a node on demand."""
        if self.on_demand_price is not None:
            return self.on_demand_price
        price: float = assumptions()["prices"][ON_DEMAND]["value"]
        return price

    @property
    def common(self) -> Common:
        """The common parameters for this model, network and fleet."""
        parameters = sum(x.parameter_bytes for x in self.profile.layers) / _PARAMETER_BYTES
        each = assumptions()["state"]["bytes_per_parameter"]["value"]
        values = common()
        return common(
            notice_ms=self.notice_ms,
            bytes_per_s=self.network.bytes_per_s,
            state_bytes=parameters * each,
            mean_gap_ms=self.fleets.mean_gap_ms,
            fewest_stages=self.fewest_stages,
            most_stages=max(self.fewest_stages, min(values.most_stages, len(self.profile.layers))),
            stages=self.stages or self.fewest_stages,
            nodes=self.fleets.nodes,
        )

    @property
    def formula(self) -> Formula:
        """The formula of the ratios, with split backwards, as the planner may make them. What a
        stage sends is hidden, unless the model's own stages say what is not."""
        layers = self.profile.layers
        return Formula(
            layers=len(layers),
            microbatches=self.profile.microbatches,
            layer_ms=1000 * fmean(x.forward_s + x.backward_s for x in layers),
            wait_ms=1000 * self.profile.stage_s,
            gradient_bytes=float(sum(x.parameter_bytes for x in layers)),
            bytes_per_s=self.network.bytes_per_s,
            is_split=True,
        )

    @property
    def best_per_node(self) -> float:
        """The most samples per second of a node: it never waits, and the model has as few stages as
        it can have. Whatever the schedule is, all of this must be computed by somebody."""
        model = self.profile
        work_s = sum(x.forward_s + x.backward_s for x in model.layers)
        return model.samples_each / (work_s + model.stage_s * self.fewest_stages)

    def job(self, times: StepTimes, seats_seed: int = 0, *, is_fixed: bool = False) -> Job:
        """The job with these step times. ``seats_seed``: as in :class:`Common`; ``is_fixed``: every
        system keeps the common depth."""
        shared = replace(self.common, seats_seed=seats_seed)
        if is_fixed:
            depth = shared.stages
            shared = replace(shared, fewest_stages=depth, most_stages=depth)
        return Job(times, self.formula, shared)
