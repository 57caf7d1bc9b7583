"""``python -m bamboo_agent.worker.profile_job --out FILE``: what a job's layers cost here.

Reads the frozen spec (JSON) from standard input and writes one JSON object into the file: the
layers' costs, the device and its free memory. ``bamboo profile`` runs it. What is wrong with the
user's code is one line on standard error, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bamboo_agent.data.batches import DataTooSmallError
from bamboo_agent.device import properties
from bamboo_agent.device.properties import GpuMissingError, GpuUnsupportedError
from bamboo_agent.model import FactoryError
from bamboo_agent.setup.determinism import make_deterministic
from bamboo_agent.setup.factories import build_setup
from bamboo_core.api.spec import FactorySpec, from_json
from bamboo_core.model.ids import AgentId
from bamboo_core.protection.profile_file import Profile, to_json


def main(arguments: Sequence[str] | None = None) -> int:
    """Profile the job; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bamboo_agent.worker.profile_job")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(arguments)
    spec = from_json(sys.stdin.read())
    # other values cost the same, and the files may be elsewhere
    spec = replace(spec, model=replace(spec.model, initial_from=None))
    try:
        make_deterministic()
        device = properties.choose_device(spec.worker.asks)
        memory_bytes = properties.free_memory(device)
        _, measured = build_setup(AgentId("profile"), spec, device)
    except (FactoryError, DataTooSmallError, GpuUnsupportedError, GpuMissingError) as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 1
    found = Profile(
        properties.device_kind(device),
        memory_bytes,
        spec.training.micro_batch_size,
        FactorySpec(spec.model.factory, spec.model.args),
        tuple(measured.costs),
    )
    given.out.write_text(to_json(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
