"""Checks of the channel ProcessGroup over NCCL, on a machine with GPUs.

    python -m bamboo_sim.fleet.runs.gpu_check [--kills 12] [--rounds 5]

one_rank: a process makes an NCCL group of its own, uses it, aborts it, and makes the next one.
bandwidth: the channel beside plain NCCL (benchmarks/transport.py). equality: a job over NCCL equals
the same job over tcp, bit for bit. kill_points: so does one whose agents die while they make groups
and in the middle of messages. Two ranks on one GPU need NCCL 2.30.3; equality and kill_points need
two GPUs, because agents on one GPU stay on tcp. What cannot run here is "not run", with the reason.

Writes benchmarks/results/gpu_check.json. Exit status: 0 if nothing failed, 1 if something did, 3
without a GPU.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import random
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed

from bamboo_agent.transport.process_group import groups
from bamboo_core.api.spec import Channel
from bamboo_sim.fleet.local_fleet import ForkServerProcess
from bamboo_sim.fleet.runs.scenarios import IN_GROUPS, run_scenario, undisturbed
from bamboo_sim.programs import arguments, results_file

PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"
NO_GPU_STATUS = 3
SHARING_NCCL = (2, 30, 3)
"""The first NCCL that lets two ranks share a GPU."""
NOTE = (
    "Each check is passed, failed, or not run, with the reason. one_rank: init, all-reduce, abort,"
    " recreate; bandwidth: figures as in transport, over NCCL; equality: a job over process groups"
    " equals the same one over tcp bit for bit; kill_points: so do jobs whose agents die while they"
    " make a group or within a message"
)
_ONE_RANK_S = 300.0
_STEPS = 12
_dist: Any = torch.distributed


@dataclass(frozen=True)
class Machine:
    """What there is to check with."""

    gpus: tuple[str, ...]  # their names
    nccl: str  # version; empty: none

    @classmethod
    def here(cls) -> Machine:
        """This machine."""
        names = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
        return cls(tuple(names), groups.nccl_version())

    def why_unusable(self) -> str:
        """Why nothing can be checked here; empty: it can."""
        if not self.gpus:
            return "torch sees no GPU on this machine"
        return "" if self.nccl else "torch has no NCCL here; install a build of torch for CUDA"

    def why_not_two_ranks(self) -> str:
        """Why two ranks cannot meet here; empty: they can."""
        version = tuple(int(part) for part in self.nccl.split("."))
        if len(self.gpus) > 1 or version >= SHARING_NCCL:
            return ""
        needed = ".".join(map(str, SHARING_NCCL))
        return f"two ranks on one GPU need NCCL {needed}, and this is {self.nccl}"

    def why_not_two_agents(self) -> str:
        """Why two agents cannot use a group here; empty: they can."""
        return "" if len(self.gpus) > 1 else "there is one GPU, and agents that share it use tcp"


@dataclass(frozen=True)
class Check:
    """hindrance: why it cannot run here; empty: it can. run: returns figures; raises to fail."""

    name: str
    hindrance: str
    run: Callable[[], dict[str, float]]


@dataclass(frozen=True)
class Verdict:
    """Of one check."""

    state: str  # PASSED, FAILED or NOT_RUN
    why: str
    seconds: float
    figures: dict[str, float]


def judge(check: Check) -> Verdict:
    """Run a check if it can run."""
    if check.hindrance:
        return Verdict(NOT_RUN, check.hindrance, 0.0, {})
    start = time.monotonic()
    try:
        figures, state, why = check.run(), PASSED, ""
    except Exception:  # of any kind: it is the result, and the other checks run
        figures, state, why = {}, FAILED, traceback.format_exc()[-2000:]
    return Verdict(state, why, round(time.monotonic() - start, 1), figures)


# ---------------------------------------------------------------- the checks


def _one_rank(backend: str) -> None:
    """Make, use and abort two groups, one after the other, in this process."""
    is_nccl = backend == "nccl"
    device = torch.device("cuda:0" if is_nccl else "cpu")
    kind = _dist.ProcessGroupNCCL if is_nccl else _dist.ProcessGroupGloo
    for number in range(2):
        options = kind.Options() if is_nccl else kind._Options()
        if not is_nccl:
            options._devices = [kind.create_device(hostname="127.0.0.1")]
        options._timeout = timedelta(seconds=groups.OPERATION_S)
        group = kind(_dist.HashStore(), 0, 1, options)
        ones = torch.full((1000,), float(number + 1), device=device)
        group.allreduce([ones]).wait()
        assert float(ones.sum()) == 1000.0 * (number + 1)
        group.abort()


def one_rank(backend: str = "nccl") -> dict[str, float]:
    """In a process of its own, which may hang. AssertionError unless it ends well in time."""
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_one_rank, args=(backend,), daemon=True)
    process.start()
    process.join(_ONE_RANK_S)
    if process.exitcode is None:
        process.kill()
        raise AssertionError(f"it has not ended within {_ONE_RANK_S:g} s")
    assert process.exitcode == 0, f"its process ended with {process.exitcode}"
    return {}


def bandwidth(rounds: int, backend: str = "nccl") -> dict[str, float]:
    """Figures of benchmarks/transport.py."""
    program = results_file.ROOT / "benchmarks" / "transport.py"
    command = [
        *(sys.executable, str(program), "--print"),
        *("--backend", backend, "--rounds", str(rounds)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr[-1500:]
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def equality() -> dict[str, float]:
    """AssertionError unless a job over process groups equals one over tcp."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        forkserver = ForkServerProcess(folder / "socket")
        forkserver.start()
        try:
            results = [
                asyncio.run(
                    undisturbed(folder / channel, forkserver, IN_GROUPS.over(channel), _STEPS)
                )
                for channel in (Channel.PROCESS_GROUP, Channel.TCP)
            ]
        finally:
            forkserver.stop()
        logs = [path.read_text() for path in (folder / Channel.PROCESS_GROUP).glob("quiet/logs/*")]
    assert any(" goes over " in log for log in logs), "no pair has used a group"
    results[0].assert_equal(results[1])
    return {"steps": results[0].steps}


def kill_points(kills: int) -> dict[str, float]:
    """AssertionError unless a job whose agents die in their groups equals an undisturbed one."""
    chosen = random.Random(1).sample(IN_GROUPS.faults, kills)
    with tempfile.TemporaryDirectory() as name:
        forkserver = ForkServerProcess(Path(name) / "socket")
        forkserver.start()
        try:
            found = asyncio.run(run_scenario(Path(name) / "job", forkserver, IN_GROUPS, chosen))
        finally:
            forkserver.stop()
    return {"deaths": len(found.faults), "steps": found.steps}


# ---------------------------------------------------------------- the command


def checks(machine: Machine, *, kills: int, rounds: int) -> list[Check]:
    """All of them, cheapest first."""
    two_agents = machine.why_not_two_agents()
    return [
        Check("one_rank", "", one_rank),
        Check("bandwidth", machine.why_not_two_ranks(), lambda: bandwidth(rounds)),
        Check("equality", two_agents, equality),
        Check("kill_points", two_agents, lambda: kill_points(kills)),
    ]


def write(machine: Machine, verdicts: dict[str, Verdict]) -> Path:
    """The result file."""
    figures: dict[str, Any] = {name: verdict.state for name, verdict in verdicts.items()}
    for name, verdict in verdicts.items():
        figures |= {f"{name}_{key}": value for key, value in verdict.figures.items()}
    samples = {
        "gpus": list(machine.gpus),
        "nccl": machine.nccl,
        "torch": torch.__version__,
        "seconds": {name: verdict.seconds for name, verdict in verdicts.items()},
        "why": {name: verdict.why for name, verdict in verdicts.items() if verdict.why},
    }
    return results_file.write("gpu_check", samples=samples, figures=figures, note=NOTE)


def main() -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="scripts/gpu-check", description=__doc__, formatter_class=form
    )
    most = len(IN_GROUPS.faults)
    parser.add_argument(
        "--kills", type=arguments.at_least(1), default=12, help=f"at most {most} (default: 12)"
    )
    parser.add_argument("--rounds", type=arguments.at_least(1), default=5, help="of bandwidth")
    given = parser.parse_args()
    if given.kills > most:
        parser.error(f"--kills {given.kills} is more than there are points; give at most {most}")
    machine = Machine.here()
    if why := machine.why_unusable():
        print(f"gpu-check: {why}; nothing was checked.", file=sys.stderr)
        return NO_GPU_STATUS
    verdicts = dict[str, Verdict]()
    for check in checks(machine, kills=given.kills, rounds=given.rounds):
        verdicts[check.name] = found = judge(check)
        print(f"{check.name}: {found.state}{': ' + found.why if found.why else ''}", flush=True)
    print(write(machine, verdicts))
    return 1 if any(found.state == FAILED for found in verdicts.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
