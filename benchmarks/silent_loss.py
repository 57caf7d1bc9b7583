"""How soon training stops for a fault that closes no socket, with real agents and a real arbiter.

    python benchmarks/silent_loss.py [--samples 100] [--fleets 3] [--seed 1] [--minutes 60]
        [--kinds KIND ...]

Two pipelines of two stages, Replica. At a random moment of a step, one of these happens:

    freeze       SIGSTOP of an agent's supervisor and worker, as when a node stands still
    cut          nothing of one agent arrives at a neighbour in its pipeline; the way back is whole
    hang         an instruction of a worker never ends
    stop_worker  SIGSTOP of a worker only
    trickle      one byte a second passes between one agent and a neighbour, in both directions;
                 their supervisors' signs of life are on time

delay_s is the time from the fault to the STOP; after a trickle, to the STOP that leaves the link
out. An instruction may take some time, so a hang is counted from the moment at which it has taken
longer than its limit. So is a stopped worker, if an instruction was running. After the STOP the
fault ends, and a new agent takes the victim's place.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

from bamboo_core.api.events import EventFact, EventReason, StallCause
from bamboo_core.api.spec import RedundancyMode
from bamboo_core.arbiter_state.events import Timing
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import Heartbeat
from bamboo_sim.fleet.local_fleet import ForkServerProcess, LocalFleet
from bamboo_sim.fleet.runs import side_by_side
from bamboo_sim.fleet.runs.campaign import Campaign
from bamboo_sim.fleet.runs.jobs import tiny_gpt
from bamboo_sim.fleet.runs.side_by_side import Rows
from bamboo_sim.programs import arguments, results_file
from bamboo_sim.soak.record import quantile

KINDS = ("freeze", "cut", "hang", "stop_worker", "trickle")
PER_FLEET = 25
FLOOR_S = 2.0
TIMING = Timing(start_grace_s=0.2, join_grace_s=0.2, instruction_floor_s=FLOOR_S)
NOTE = (
    "delay_s: from the fault to the STOP; for an instruction that hangs or was stopped, beyond its"
    f" limit, here max({FLOOR_S:g} s, 20 x its measured time). KIND_p50_s, KIND_p99_s, KIND_max_s:"
    " of one kind; p99_s: the largest 99th percentile of all kinds but trickle, goal 4; of trickle,"
    " which counts after 30 s, the goal is 40. Model: GPT of"
    " bamboo_sim/fleet/runs/jobs.py; all agents of all fleets share the cores of this machine"
)
Sample = dict[str, Any]


@dataclass(frozen=True)
class Order:
    """What one fleet's process measures."""

    number: int
    seed: int
    kinds: tuple[str, ...]
    samples: int  # of each kind
    until: float  # time.monotonic()
    socket: Path  # of the forkserver


class Bench:
    """One fleet, and the faults injected into it."""

    def __init__(self, fleet: LocalFleet, chance: random.Random) -> None:
        self._fleet, self._chance = fleet, chance
        self._campaign = Campaign(fleet)
        self._replaced = set[AgentId]()
        self._newcomers = 0

    async def start(self) -> None:
        """Four agents, and one for the next free seat."""
        await self._fleet.add({f"agent-{n}": f"zone-{'abc'[n % 3]}" for n in range(5)})

    async def measure(self, kind: str) -> Sample:
        """Inject the fault, wait for the STOP, and end the fault."""
        fleet = self._fleet
        await self._steady()
        victim = self._chance.choice(sorted(fleet.plan().live))
        seat = "{}.{}".format(*fleet.plan().seats[victim])
        sent, at = len(fleet.operator.messages), time.monotonic()
        getattr(self, f"_{kind}")(victim)
        await fleet.until(
            lambda: self._stopped_at(kind, at) < inf,
            f"the stop for {kind} {victim}",
            deadline_s=120.0,
        )
        began = fleet.hung_at(victim) or at
        limit_s = self._limit_s(victim, sent) if kind in ("hang", "stop_worker") else 0.0
        fleet.faults.heal()
        if kind not in ("cut", "trickle"):  # after these, the operator ends an agent, or nobody
            fleet.kill(victim)
        return {
            "kind": kind,
            "seat": seat,
            "limit_s": round(limit_s, 4),
            "delay_s": round(self._stopped_at(kind, at) - began - limit_s, 4),
        }

    def _stopped_at(self, kind: str, at: float) -> float:
        """When training stopped for the fault of that time; inf: it has not. For a link that
        trickles, only the stop counts that leaves it out."""
        records = [(t, r) for t, r in self._fleet.operator.records if t > at]
        if kind == "trickle":
            told = (t for t, r in records if r.facts.get(EventFact.CAUSE) == StallCause.TRICKLE)
            first = next(told, inf)
            records = [(t, r) for t, r in records if t >= first]
        return next((t for t, r in records if r.reason is EventReason.STOPPED), inf)

    # ------------------------------------------------------------ faults

    def _freeze(self, victim: AgentId) -> None:
        self._fleet.freeze(victim)

    def _cut(self, victim: AgentId) -> None:
        self._fleet.faults.cut(*self._pair(victim), one_way=True)

    def _trickle(self, victim: AgentId) -> None:
        self._fleet.faults.trickle(*self._pair(victim), 1.0)

    def _pair(self, victim: AgentId) -> tuple[AgentId, AgentId]:
        """The victim and a neighbour in its pipeline, in any order."""
        (pipeline,) = [p for p in self._fleet.plan().pipelines if victim in p]
        pairs = [(a, b) for a, b in pairwise(pipeline) if a and b and victim in (a, b)]
        one, other = self._chance.sample(self._chance.choice(pairs), 2)
        return one, other

    def _hang(self, victim: AgentId) -> None:
        self._fleet.hang(victim)

    def _stop_worker(self, victim: AgentId) -> None:
        self._fleet.freeze(victim, "worker")

    def _limit_s(self, victim: AgentId, sent: int) -> float:
        """The limit of what the worker did last, as its supervisor told it; 0: it has none."""
        said = [x.message for x in self._fleet.operator.messages[sent:] if x.agent == victim]
        told = [x.activity for x in said if isinstance(x, Heartbeat) and x.activity is not None]
        return told[-1].limit_s if told else 0.0

    # ------------------------------------------------------------ between faults

    async def _steady(self) -> None:
        """Wait for a plan without holes, some steps of it, and a random part of a step."""
        while True:
            await self._refill()
            await self._campaign.steady_step()
            step = self._fleet.committed_step + 3
            await self._fleet.committed(step, deadline_s=120.0)
            await asyncio.sleep(self._chance.random() * 0.1)
            if self._campaign.has_full_plan():
                return

    async def _refill(self) -> None:
        for agent in sorted(self._fleet.exits.keys() - self._replaced):
            self._replaced.add(agent)
            self._newcomers += 1
            await self._fleet.add({f"new-{self._newcomers}": self._fleet.pods[agent].zone})


def serve(order: Order, rows: Rows[Sample]) -> None:
    """Measure all samples of one process. Each job takes a few, so that logs stay short."""
    chance = random.Random(f"{order.seed}/{order.number}")
    mine = order.kinds
    kinds = [kind for _ in range(order.samples) for kind in chance.sample(mine, len(mine))]
    for first in range(0, len(kinds), PER_FLEET):
        asyncio.run(_one_fleet(order, kinds[first : first + PER_FLEET], chance, rows))


async def _one_fleet(
    order: Order, kinds: Sequence[str], chance: random.Random, rows: Rows[Sample]
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spec = tiny_gpt(folder, pipelines=2, stages=2, mode=RedundancyMode.REPLICA, microbatches=8)
        spec = replace(spec, training=replace(spec.training, steps=1_000_000))
        async with LocalFleet(
            spec,
            folder / "fleet",
            timing=TIMING,
            forkserver=ForkServerProcess(order.socket),
            sees_ends=False,
            logs_events=False,
        ) as fleet:
            bench = Bench(fleet, chance)
            await bench.start()
            for kind in kinds:
                if time.monotonic() > order.until:
                    return
                rows.put(await bench.measure(kind))


def figures(samples: Sequence[Sample]) -> dict[str, float]:
    """Percentiles of each kind that was measured."""
    found: dict[str, float] = {}
    for kind in (x for x in KINDS if any(sample["kind"] == x for sample in samples)):
        delays = sorted(x["delay_s"] for x in samples if x["kind"] == kind)
        found[f"{kind}_samples"] = len(delays)
        for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
            found[f"{kind}_{name}_s"] = quantile(delays, share)
    short = [
        found[x] for x in (f"{kind}_p99_s" for kind in KINDS if kind != "trickle") if x in found
    ]
    return {"p99_s": max(short, default=0.0), **found}


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--samples", type=arguments.at_least(1), default=100, help="of each kind")
    parser.add_argument("--fleets", type=arguments.at_least(1), default=3, help="side by side")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=arguments.amount, default=60.0)
    parser.add_argument(
        "--kinds", nargs="+", choices=KINDS, default=KINDS, help="fewer: no result file is written"
    )
    given = parser.parse_args()
    samples: list[Sample] = []
    share = -(-given.samples // given.fleets)
    with tempfile.TemporaryDirectory() as folder:
        forkserver = ForkServerProcess(Path(folder) / "socket")
        forkserver.start()
        until = time.monotonic() + 60 * given.minutes
        orders = [
            Order(n, given.seed, tuple(given.kinds), share, until, forkserver.socket)
            for n in range(given.fleets)
        ]
        for sample in side_by_side.rows(serve, orders):
            samples.append(sample)
            print(f"{len(samples)}: {sample}", flush=True)
        forkserver.stop()
    if set(given.kinds) != set(KINDS):
        print(figures(samples))
        return
    columns = {
        kind: results_file.columns([x for x in samples if x["kind"] == kind]) for kind in KINDS
    }
    path = results_file.write("silent_loss", samples=columns, figures=figures(samples), note=NOTE)
    print(path)


if __name__ == "__main__":
    main()
