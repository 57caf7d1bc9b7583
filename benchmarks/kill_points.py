"""SIGKILL at every instruction of real agents (torch, tcp): no bit of the result may change.

    python benchmarks/kill_points.py [--only NAME] [--minutes M] [--slice 29]
                                   [--doubles 60] [--eager 60] [--channel ProcessGroup]

The scenarios are those of bamboo_sim.fleet.runs.scenarios: every instruction of one pipeline
of four stages with replicas; a sample of the same in mode Eager, with host memory for what is
computed ahead and without; the instructions around a commit of two pipelines of three stages
without replicas; a sample of two deaths in one step. Each process dies before the instruction,
after it, or after its results were sent. With ProcessGroup, processes also die while they make a
group, and in the middle of a message that goes over one.

A slice is one job that takes many faults, each followed by a new agent. Its result is compared with
an undisturbed job of as many steps. The result file is written after each slice; a run of the same
code resumes the last one. The exit status is 1 if a slice fails, or if no process has died although
points were left.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import torch

from bamboo_agent.transport.process_group.groups import nccl_version
from bamboo_core.api.spec import Channel, TransportSpec
from bamboo_core.protocol.channels import choose
from bamboo_sim.fleet.local_fleet import ForkServerProcess
from bamboo_sim.fleet.runs import kill_record
from bamboo_sim.fleet.runs.kill_record import Slice
from bamboo_sim.fleet.runs.scenarios import (
    COMMITTING,
    EAGER,
    EAGER_ON_DEVICE,
    IN_GROUPS,
    ONE_PIPELINE,
    TWO_DEATHS,
    Points,
    Scenario,
    run_scenario,
)
from bamboo_sim.programs import arguments
from bamboo_sim.programs.sample import Sample, TooSmallError

SCENARIOS = (COMMITTING, ONE_PIPELINE, EAGER, EAGER_ON_DEVICE, TWO_DEATHS, IN_GROUPS)
NAMES = tuple(scenario.name for scenario in SCENARIOS)


def run(scenario: Scenario, faults: Sequence[Points], forkserver: ForkServerProcess) -> Slice:
    """Run one slice. If it fails, its files stay; the failure's text names their folder."""
    folder = Path(tempfile.mkdtemp(prefix=f"kill-points-{scenario.name}-"))
    texts, start = kill_record.as_text(faults), time.monotonic()
    try:
        found = asyncio.run(run_scenario(folder, forkserver, scenario, faults))
    except Exception:  # a failure of any kind is recorded, and the other slices run
        text = traceback.format_exc()  # logs of agents stand at its end, the reason before them
        failure = f"{text[:3000]}\n[...]\n{text[-1000:]}\nfiles: {folder}"
        print(failure, file=sys.stderr, flush=True)
        seconds = round(time.monotonic() - start, 1)
        return Slice(scenario.name, texts, seconds, failure=failure)
    shutil.rmtree(folder)
    return Slice(
        scenario.name,
        texts,
        round(time.monotonic() - start, 1),
        deaths=[str(point) for fault in found.faults for point in fault.points],
        pairs=sum(len(fault.points) > 1 for fault in found.faults),
        steps=found.steps,
    )


def sample(scenario: Scenario, count: int, seed: int) -> list[Points]:
    """At most ``count`` of the scenario's faults."""
    return random.Random(seed).sample(scenario.faults, min(count, len(scenario.faults)))


def main() -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument(
        "--slice", type=arguments.at_least(1), default=29, help="faults of one job (default: 29)"
    )
    parser.add_argument(
        "--doubles", type=arguments.at_least(0), default=60, help="size of the sample of two deaths"
    )
    parser.add_argument(
        "--eager", type=arguments.at_least(0), default=60, help="size of each sample of mode Eager"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the samples")
    parser.add_argument("--only", default="", choices=["", *NAMES], help="run one scenario")
    parser.add_argument(
        "--minutes", type=arguments.amount, default=1e6, help="start no slice after this time"
    )
    parser.add_argument(
        "--channel",
        default=Channel.AUTO,
        choices=list(Channel),
        help="of the job; over process groups the result is kill_points_over_BACKEND.json",
    )
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    wanted = TransportSpec(channel=Channel(given.channel))
    route = choose(wanted, device, nccl_version())
    channel = route.channel
    name = kill_record.NAME + (f"_over_{route.backend}" if route.backend else "")
    scheduled: dict[Scenario, Sequence[Points]] = {
        COMMITTING.over(channel): COMMITTING.faults,
        ONE_PIPELINE.over(channel): ONE_PIPELINE.faults,
        EAGER.over(channel): sample(EAGER, given.eager, given.seed),
        EAGER_ON_DEVICE.over(channel): sample(EAGER_ON_DEVICE, given.eager, given.seed),
        TWO_DEATHS.over(channel): sample(TWO_DEATHS, given.doubles, given.seed),
    }
    if channel is Channel.PROCESS_GROUP:
        scheduled[IN_GROUPS] = IN_GROUPS.faults
    record = kill_record.resume(scheduled, name)
    with tempfile.TemporaryDirectory() as folder:
        forkserver = ForkServerProcess(Path(folder) / "socket")
        forkserver.start()
        left = [x for x in record.pending(given.slice) if given.only in ("", x[0].name)]
        tried = Sample("the run", {"deaths": 1 if left else 0}, 60 * given.minutes)
        for number, (scenario, faults) in enumerate(left, start=1):
            tried.begin()
            if tried.is_over:
                break
            record.slices.append(run(scenario, faults, forkserver))
            tried.add("deaths", len(record.slices[-1].deaths))
            record.write()
            state = "failed" if record.slices[-1].failure else "survived"
            print(f"{number} of {len(left)}: {len(faults)} of {scenario.name} {state}", flush=True)
        forkserver.stop()
    try:
        tried.check()
    except TooSmallError as error:
        print(f"bamboo: {error}", file=sys.stderr)
        return 1
    return 1 if record.figures()["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
