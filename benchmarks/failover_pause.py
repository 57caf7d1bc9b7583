"""How long training pauses when an agent is killed: 8 real agents and a real arbiter.

    python benchmarks/failover_pause.py [--kills 100] [--notices 5] [--seed 1] [--minutes 60]
                                        [--channels]

Two pipelines of four stages, Replica. A random agent (supervisor and worker) gets SIGKILL at a
random moment of a step. The arbiter is not told; it sees closed sockets, as when a pod dies.
pause_s is the time from the signal to the next commit under the new plan, less a normal step (the
median of the undisturbed steps before it). Then a new agent takes the empty seat. Agents on notice
get SIGTERM with 10 s of grace; no task may be done twice for them. --minutes ends a long run early.

--channels measures kills over the channels ProcessGroup and Tcp in turn, a fleet for every few, and
writes channel_pause.json.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import math
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any

from bamboo_core.api.events import EventReason
from bamboo_core.api.spec import Channel, JobSpec, RedundancyMode, TransportSpec
from bamboo_core.model.ids import AgentId
from bamboo_core.placement.plan import layers_of
from bamboo_core.protocol.messages import AgentReport, Progress, Ready
from bamboo_proto.v1 import agent_pb2 as pb
from bamboo_sim.fleet.local_fleet import ForkServerProcess, LocalFleet
from bamboo_sim.fleet.runs.campaign import Campaign
from bamboo_sim.fleet.runs.jobs import tiny_gpt
from bamboo_sim.programs import arguments, results_file

PIPELINES, STAGES, MICROBATCHES = 2, 4, 16
PER_FLEET = 25
PER_TURN = 5
BUSY_S = 300.0  # for what is not measured: agents start slowly on a busy machine
STEADY = 3  # undisturbed steps before each loss
PARTS = ("detect", "stop", "decide", "direct", "resume", "recompute")
NOTE = (
    "pause_s: from SIGKILL to the next commit, less a normal step; goals: p50_s 1, p99_s 3."
    " delay_s: the same from the last commit before the signal, which includes all that the loss"
    " costs. Parts (medians; for each kill they sum to pause_s + step_s): detect, until the arbiter"
    " stops the job; stop, until the last report; decide, until the plan; direct, until the last"
    " supervisor has its directive; resume, until the last worker has its program; recompute, until"
    " the commit. noticed_p50_s: SIGTERM while a standby is ready; the longest step, less a normal"
    " one. redone_tasks: tasks done twice after a notice, goal 0. Model: GPT of"
    f" bamboo_sim/fleet/runs/jobs.py, {MICROBATCHES} micro-batches of 2; all agents share the"
    " cores of this machine"
)
CHANNELS_NOTE = (
    "p50_s, p99_s: the pause as in failover_pause, over process groups (their backend is gloo on"
    " CPUs); goal: p99_s 3. tcp_*: the same over tcp, in fleets that take turns. in_group_kills:"
    " kills of agents that sent over a group at that time. All tensors go by groups,"
    " whatever their size"
)
Sample = dict[str, Any]


def job(folder: Path, channel: Channel = Channel.AUTO) -> JobSpec:
    """The GPT of the tests, without an end."""
    spec = tiny_gpt(
        folder,
        pipelines=PIPELINES,
        stages=STAGES,
        mode=RedundancyMode.REPLICA,
        microbatches=MICROBATCHES,
    )
    training = replace(spec.training, steps=1_000_000)
    return replace(spec, training=training, transport=TransportSpec(channel))


class Tail:
    """Lines that are appended to a log from now on."""

    def __init__(self, path: Path) -> None:
        self._path, self._at = path, path.stat().st_size

    def lines(self) -> Iterator[dict[str, Any]]:
        """Whole lines only."""
        with self._path.open("rb") as file:
            file.seek(self._at)
            _, *lines = b"".join((b"\n", file.read())).split(b"\n")
        for line in lines[:-1]:
            yield json.loads(line)


class Bench:
    """One fleet, and the losses injected into it."""

    def __init__(self, fleet: LocalFleet, chance: random.Random) -> None:
        self._fleet, self._chance = fleet, chance
        self._campaign = Campaign(fleet)
        self._newcomers = 0
        self._replaced = set[AgentId]()

    async def start(self) -> None:
        """Eight agents in three zones."""
        seats = range(PIPELINES * STAGES)
        await self._fleet.add({f"agent-{n}": f"zone-{'abc'[n % 3]}" for n in seats})

    async def kill(self) -> Sample:
        """SIGKILL one agent of a fleet with a full plan."""
        fleet, records = self._fleet, self._fleet.operator.records
        step_s = await self._steady()
        plan = fleet.plan()
        victim = self._chance.choice(sorted(plan.live))
        survivors = [agent for agent in plan.live if agent != victim]
        tails = [Tail(path) for agent in survivors for path in self._logs(agent)]
        sent, recorded = len(fleet.operator.messages), len(records)
        at = fleet.kill(victim)
        await fleet.until(
            lambda: any(r.reason is EventReason.RESUMED for _, r in records[recorded:]),
            f"a commit without {victim}",
        )
        marks = [at, *self._marks(sent, recorded, tails)]
        parts = [after - before for before, after in pairwise(marks)]
        *_, last_at, _ = sorted(t for t in self._commits(0).values() if t <= marks[-1])
        return {
            "seat": "{}.{}".format(*plan.seats[victim]),
            "in_group": sends_by_group(fleet.pods[victim].log),
            "step_s": round(step_s, 4),
            "pause_s": round(marks[-1] - at - step_s, 4),
            "delay_s": round(marks[-1] - last_at - step_s, 4),
            **{f"{n}_s": round(p, 4) for n, p in zip(PARTS, parts, strict=True)},
        }

    async def notice(self) -> Sample:
        """SIGTERM one agent of a fleet with a full plan and a standby."""
        fleet = self._fleet
        await self._refill()
        await self._campaign.steady_step()
        victim = self._chance.choice(sorted(fleet.plan().live))
        newcomer = await self._add(fleet.pods[victim].zone)
        await fleet.until(lambda: newcomer in fleet.status().standby, f"{newcomer} to be ready")
        step_s = await self._steady()
        noticed_at, first = time.monotonic(), max(self._commits(0))
        fleet.terminate(victim)
        await fleet.until(lambda: victim in fleet.exits, f"the end of {victim}")
        self._replaced.add(victim)
        await self._campaign.steady_step()
        times = [at for _, at in sorted(self._commits(first).items())]
        longest_s = max(after - before for before, after in pairwise(times))
        return {
            "exit": fleet.exits[victim],
            "step_s": round(step_s, 4),
            "pause_s": round(longest_s - step_s, 4),
            "redone_tasks": fleet.redone_tasks(after=noticed_at),
        }

    async def _steady(self) -> float:
        """Wait for a normal step and a random part of the next one; seconds of the normal step.

        On a busy machine an agent may be suspected meanwhile; then wait again.
        """
        while True:
            step_s = await self._normal_step()
            await asyncio.sleep(self._chance.random() * step_s)
            status = self._fleet.status()
            committed = status.progress.committed
            if self._campaign.has_full_plan() and committed > self._fleet.plan().target:
                return step_s

    async def _normal_step(self) -> float:
        await self._refill()
        first = await self._campaign.steady_step()
        newest = max(first, *self._commits(first))
        await self._fleet.committed(newest + STEADY, deadline_s=BUSY_S)
        times = [at for _, at in sorted(self._commits(newest).items())]
        return statistics.median(after - before for before, after in pairwise(times))

    async def _refill(self) -> None:
        """Replace every agent that has ended, until no seat is empty."""
        fleet = self._fleet
        while not self._campaign.has_full_plan() or fleet.exits.keys() - self._replaced:
            for agent in sorted(fleet.exits.keys() - self._replaced):
                self._replaced.add(agent)
                await self._add(fleet.pods[agent].zone)
            await fleet.until(
                lambda: self._campaign.has_full_plan() or bool(fleet.exits.keys() - self._replaced),
                "a plan without holes",
                deadline_s=BUSY_S,
            )

    async def _add(self, zone: str) -> AgentId:
        self._newcomers += 1
        name = f"new-{self._newcomers}"
        await self._fleet.add({name: zone})
        return AgentId(name)

    def stage_bytes(self) -> int:
        """Weights of the largest stage."""
        ready = self._fleet.messages(Ready)[0]
        cut = self._fleet.plan().cut
        return max(sum(ready.costs[x].parameter_bytes for x in layers_of([s])) for s in cut)

    # ------------------------------------------------------------ observations

    def _logs(self, agent: AgentId) -> list[Path]:
        """The supervisor's and the worker's."""
        events = self._fleet.folder / "events"
        return [events / "supervisors" / f"{agent}.jsonl", events / f"{agent}.jsonl"]

    def _commits(self, first: int) -> dict[int, float]:
        """Step -> when its commit was first reported."""
        found: dict[int, float] = {}
        for said in self._fleet.operator.messages:
            if isinstance(said.message, Progress) and said.message.commit.step >= first:
                found.setdefault(said.message.commit.step, said.at)
        return found

    def _marks(self, sent: int, recorded: int, tails: Sequence[Tail]) -> list[float]:
        """When each part ended (time.monotonic())."""
        records = self._fleet.operator.records[recorded:]
        resumed = next(at for at, r in records if r.reason is EventReason.RESUMED)
        stopped = next(at for at, r in records if r.reason is EventReason.STOPPED)
        planned = max(at for at, r in records if r.reason is EventReason.PLANNED and at < resumed)
        said = self._fleet.operator.messages[sent:]
        reported = max(s.at for s in said if isinstance(s.message, AgentReport) and s.at < planned)
        lines = [line for tail in tails for line in tail.lines()]
        directed = max(n for n in map(_directed_at, lines) if n < resumed)
        installed = max(line["at"] for line in lines if "install" in line and line["at"] < resumed)
        return [stopped, reported, planned, directed, installed, resumed]


def _directed_at(line: dict[str, Any]) -> float:
    """When a supervisor got a directive; 0: another event."""
    event = line.get("event", {})
    if event.get("is") != "FromOperator":
        return 0.0
    message = pb.OperatorMessage.FromString(base64.b64decode(event["message"]))
    return float(line["now"]) if message.WhichOneof("body") == "directive" else 0.0


def sends_by_group(log: Path) -> bool:
    """Whether an agent sends over a group, by the newest line about groups in its log."""
    lines = [line for line in log.read_text().splitlines() if " goes over " in line]
    return bool(lines) and " no longer " not in lines[-1]


# ---------------------------------------------------------------- the run


@dataclass
class Results:
    """Samples of all fleets."""

    kills: list[Sample] = field(default_factory=list)
    notices: list[Sample] = field(default_factory=list)
    stage_bytes: int = 0


async def one_fleet(
    folder: Path,
    forkserver: ForkServerProcess,
    chance: random.Random,
    wanted: Wanted,
    results: Results,
    channel: Channel = Channel.AUTO,
) -> None:
    """Inject up to PER_FLEET losses, one after the other."""
    async with LocalFleet(
        job(folder, channel), folder / "fleet", forkserver=forkserver, sees_ends=False
    ) as fleet:
        bench = Bench(fleet, chance)
        await bench.start()
        for _ in range(wanted.per_fleet):
            if len(results.notices) < wanted.notices:
                results.notices.append(await bench.notice())
                print(f"notice {len(results.notices)}: {results.notices[-1]}", flush=True)
            elif not wanted.is_enough(results):
                results.kills.append(await bench.kill())
                print(f"kill {len(results.kills)}: {results.kills[-1]}", flush=True)
        results.stage_bytes = bench.stage_bytes()


@dataclass(frozen=True)
class Wanted:
    """How many losses to inject, and until when (time.monotonic())."""

    kills: int
    notices: int
    until: float
    per_fleet: int = PER_FLEET

    def is_enough(self, results: Results) -> bool:
        """All kills are done, or the time is over."""
        return len(results.kills) >= self.kills or time.monotonic() > self.until


def measure(wanted: Wanted, seed: int) -> Results:
    """Start a new fleet for every few losses, so that logs stay short."""
    results, chance = Results(), random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        forkserver = ForkServerProcess(Path(name) / "forkserver")
        forkserver.start()
        for number in count():
            if wanted.is_enough(results):
                break
            folder = Path(name) / f"fleet-{number}"
            asyncio.run(one_fleet(folder, forkserver, chance, wanted, results))
        forkserver.stop()
    return results


def take_turns(wanted: Wanted, seed: int) -> dict[Channel, Results]:
    """Fleets over process groups and over tcp in turn, so that other load meets both."""
    channels = (Channel.PROCESS_GROUP, Channel.TCP)
    found, chance = {channel: Results() for channel in channels}, random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        forkserver = ForkServerProcess(Path(name) / "forkserver")
        forkserver.start()
        for number in count():
            channel = channels[number % len(channels)]
            if all(wanted.is_enough(results) for results in found.values()):
                break
            folder = Path(name) / f"fleet-{number}"
            asyncio.run(one_fleet(folder, forkserver, chance, wanted, found[channel], channel))
        forkserver.stop()
    return found


def quantile(samples: Sequence[Sample], key: str, share: float) -> float:
    """The smallest value that at least this share of the samples does not exceed."""
    ordered = sorted(float(sample[key]) for sample in samples)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def kill_figures(kills: Sequence[Sample]) -> dict[str, float]:
    """Percentiles over all kills, and the median of each part."""
    found: dict[str, float] = {"kills": len(kills)}
    for prefix, key in (("", "pause_s"), ("delay_", "delay_s")):
        found[f"{prefix}p50_s"] = quantile(kills, key, 0.5)
        found[f"{prefix}p99_s"] = quantile(kills, key, 0.99)
    for part in PARTS:
        found[f"{part}_s"] = statistics.median(sample[f"{part}_s"] for sample in kills)
    found["step_s"] = statistics.median(sample["step_s"] for sample in kills)
    return {name: round(value, 4) for name, value in found.items()}


def figures(results: Results) -> dict[str, float]:
    """The figures of all kills, and the cost of notices."""
    notices = results.notices
    found = kill_figures(results.kills)
    found["notices"] = len(notices)
    found["noticed_p50_s"] = quantile(notices, "pause_s", 0.5)
    found["redone_tasks"] = sum(sample["redone_tasks"] for sample in notices)
    return {name: round(value, 4) for name, value in found.items()}


def channel_figures(results: dict[Channel, Results]) -> dict[str, float]:
    """The figures of process groups, and those of tcp beside them."""
    over, tcp = (results[channel].kills for channel in (Channel.PROCESS_GROUP, Channel.TCP))
    found = kill_figures(over)
    found["in_group_kills"] = sum(sample["in_group"] for sample in over)
    return found | {f"tcp_{name}": value for name, value in kill_figures(tcp).items()}


def compare_channels(wanted: Wanted, seed: int) -> Path:
    """Measure with --channels, and write the result."""
    results = take_turns(wanted, seed)
    samples = {
        str(channel): results_file.columns(found.kills) for channel, found in results.items()
    }
    return results_file.write(
        "channel_pause", samples=samples, figures=channel_figures(results), note=CHANNELS_NOTE
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--kills", type=arguments.at_least(1), default=100)
    parser.add_argument("--notices", type=arguments.at_least(1), default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=arguments.amount, default=60.0)
    parser.add_argument("--channels", action="store_true", help="compare process groups with tcp")
    given = parser.parse_args()
    until = time.monotonic() + 60 * given.minutes
    if given.channels:
        print(compare_channels(Wanted(given.kills, 0, until, PER_TURN), given.seed))
        return
    results = measure(Wanted(given.kills, given.notices, until), given.seed)
    path = results_file.write(
        "failover_pause",
        samples={
            "kills": results_file.columns(results.kills),
            "notices": results_file.columns(results.notices),
        },
        figures={**figures(results), "stage_parameter_bytes": results.stage_bytes},
        note=NOTE,
    )
    print(path)


if __name__ == "__main__":
    main()
