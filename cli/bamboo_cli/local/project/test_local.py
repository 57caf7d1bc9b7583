"""Trains a few steps on this machine, loses an agent, and compares with a plain loop: pytest."""

import subprocess
from pathlib import Path


def test_the_job_trains_and_has_the_bits_of_a_plain_loop(tmp_path: Path) -> None:
    command = ["bamboo", "train", "-f", "job.yaml", "--local", "--steps", "8", "--check"]
    here = Path(__file__).parent
    subprocess.run([*command, "--kill", "1", "--out", str(tmp_path / "run")], cwd=here, check=True)
