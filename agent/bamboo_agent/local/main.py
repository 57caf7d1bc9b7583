"""``python -m bamboo_agent.local.main``: trains a job on this machine. ``bamboo train`` runs it.

Reads the frozen spec (JSON) from standard input and tells what happens on the descriptor --tell, a
line of :mod:`bamboo_core.api.local_run` for each. What is wrong with the user's code is told as the
end of the run. SIGINT and SIGTERM end the run with a checkpoint; a second one ends it at once. So
does SIGHUP, which also comes when nobody reads the lines any more; a second one changes nothing.
Before and after the training, when there is no agent yet or none any more, each ends the process.
"""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from bamboo_agent.compute.state import TrainingSetup
from bamboo_agent.data.batches import DataTooSmallError
from bamboo_agent.device import properties
from bamboo_agent.device.properties import GpuMissingError, GpuUnsupportedError
from bamboo_agent.hooks.check import NameCheck
from bamboo_agent.local import chain, comparison
from bamboo_agent.local.hook_warnings import warnings_in
from bamboo_agent.local.operator import JOB_UID
from bamboo_agent.local.processes import LOGS
from bamboo_agent.local.reader import Announcement, Reader
from bamboo_agent.local.run import STOPPED, LocalRun, Options, Tell
from bamboo_agent.model import FactoryError
from bamboo_agent.setup.determinism import make_deterministic
from bamboo_agent.setup.factories import build_setup
from bamboo_agent.setup.fingerprint import code_by_factory, fingerprint
from bamboo_agent.setup.probe.layers import Profile
from bamboo_agent.storage.checkpoint import CheckpointError, Checkpoints
from bamboo_agent.storage.origin import identity_of, origin_of
from bamboo_core.api import local_run
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.spec import JobSpec, from_json
from bamboo_core.arbiter_state.events import Over
from bamboo_core.model.counts import counted
from bamboo_core.model.ids import AgentId


class _TooManyStagesError(ValueError):
    """The model has fewer layers than the grid has stages."""


_REFUSALS = (
    _TooManyStagesError,
    *(FactoryError, DataTooSmallError, GpuUnsupportedError, GpuMissingError),
    CheckpointError,
)

_INTERRUPTED = "Interrupted"


def main(arguments: Sequence[str] | None = None) -> int:
    """Train the job; returns 0 if it is complete, and equal if it is compared."""
    parser = argparse.ArgumentParser(prog="python -m bamboo_agent.local.main")
    parser.add_argument("--name", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--tell", type=int, required=True)
    parser.add_argument("--kill", type=int, default=0)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--variables", type=json.loads, default={})
    given = parser.parse_args(arguments)
    faulthandler.enable()  # the stack of a crash, for the log
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup(1) means the command, not its program
    spec = from_json(sys.stdin.read())
    os.environ.update(given.variables)
    tell = Reader(given.tell).tell
    setup = _set_up(spec, tell)
    if setup is None:
        return 1
    options = Options(given.folder, given.variables, torch.cuda.device_count(), given.kill)
    grid = spec.pipelines
    tell(
        local_run.Fleet(
            grid.count,
            grid.stages,
            properties.device_kind(setup.device),
            options.gpus,
            str(given.folder),
        )
    )
    run = LocalRun(given.name, spec, options, tell)
    over = asyncio.run(_train(run))
    for warning in warnings_in(given.folder / LOGS):
        tell(warning)
    return _finish(spec, setup, over, tell, checks=given.check, committed=run.committed)


def _set_up(spec: JobSpec, tell: Tell) -> TrainingSetup | None:
    """Build and probe the user's code here, before any agent does; None: it is refused."""
    try:
        make_deterministic()
        hooks = NameCheck(spec.hooks)
        device = properties.choose_device(spec.worker.asks)
        with Announcement(tell, lambda: "running each layer once"):
            layers = _tell_chain(spec, device, tell)
        _check_stages(spec, layers)
        with Announcement(tell, lambda: "building model, data and optimizer; measuring layers"):
            _log("layers forward and backward, the loss and the optimizer")
            setup, profile = build_setup(AgentId("plain-loop"), spec, device)
            print("the set-up has ended", flush=True)
        hooks.finish()
        _settle_origin(spec, setup, profile)
    except _REFUSALS as error:
        tell(local_run.Ended(Outcome.FAILED, " ".join(str(error).split())))
        return None
    return setup


def _settle_origin(spec: JobSpec, setup: TrainingSetup, profile: Profile) -> None:
    """Let the job begin with the checkpoint that it names. CheckpointError if it cannot."""
    if spec.checkpoint is None or spec.checkpoint.from_ is None:
        return
    found = fingerprint(spec, setup, profile)
    origin = origin_of(spec, identity_of(spec, found, code_by_factory(spec)))
    assert origin is not None
    own = Checkpoints(spec.checkpoint.uri, JOB_UID)
    own.probe()  # which makes the job's folder
    origin.settle(own)


def _tell_chain(spec: JobSpec, device: torch.device, tell: Tell) -> int | None:
    """Return the number of layers; None: one of them fails."""
    told = -1  # the input is no layer
    try:
        for layer in chain.run_through(spec, device, _log):
            tell(layer)
            told += 1
    except (Exception, SystemExit):  # the set-up meets the same error, and says what to change
        return None
    return told


def _log(runs: str) -> None:
    """Write to the log what runs next: it is the last line if that ends the process."""
    print(f"the set-up runs {runs}", flush=True)


def _check_stages(spec: JobSpec, layers: int | None) -> None:
    """Refuse stages without a layer before any agent starts."""
    stages = spec.pipelines.stages
    if layers is not None and layers < stages:
        raise _TooManyStagesError(
            f"spec.model.factory {spec.model.factory} gives {counted(layers, 'layer')}, fewer than"
            f" spec.pipelines.stages {stages}: lower it, or --stages, to {layers} at most, or give"
            " the model more layers"
        )


async def _train(run: LocalRun) -> Over:
    task = asyncio.create_task(run.run())
    loop = asyncio.get_running_loop()

    def interrupt() -> None:
        if run.is_suspended:
            task.cancel()
        run.suspend()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupt)
    loop.add_signal_handler(signal.SIGHUP, run.suspend)
    try:
        return await task
    except asyncio.CancelledError:
        return Over(
            Outcome.SUSPENDED, _INTERRUPTED, "ended by a second signal, without a checkpoint"
        )


def _finish(
    spec: JobSpec,
    setup: TrainingSetup,
    over: Over,
    tell: Tell,
    *,
    checks: bool,
    committed: int,
) -> int:
    last = comparison.Final.read(spec, layers=len(setup.sizes))
    is_equal = True
    if checks and over.outcome is Outcome.COMPLETE and last is not None:
        text = f"comparing with a plain loop of {counted(spec.training.steps, 'step')}"
        with Announcement(tell, lambda: text):
            found = comparison.compare(spec, setup, last)
        tell(found)
        is_equal = not found.differs
    folder, digest = ("", "") if last is None else (last.folder, last.digest)
    best = last.best if last is not None else ""
    message = over.message
    if over.reason in (STOPPED, _INTERRUPTED):
        message = "; ".join(filter(None, [message, comparison.left(last, committed)]))
    tell(local_run.Ended(over.outcome, message, folder, digest, best))
    return 0 if over.outcome is Outcome.COMPLETE and is_equal else 1


if __name__ == "__main__":
    sys.exit(main())
