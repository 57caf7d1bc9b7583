"""Running kubectl and helm: their output and their failures."""

from __future__ import annotations

from pathlib import Path

import pytest

from bamboo_cli.errors import ProgramError
from bamboo_cli.quickstart.programs import Programs


def make(tmp_path: Path, script: str) -> Programs:
    """kubectl and helm are a line of shell."""
    path = tmp_path / "kubectl"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return Programs(path, path, tmp_path / "kubeconfig", tmp_path / "home")


def test_output_and_environment(tmp_path: Path) -> None:
    programs = make(tmp_path, 'echo "$KUBECONFIG $HELM_CACHE_HOME $1"; cat')
    assert programs.helm("x") == f"{tmp_path}/kubeconfig {tmp_path}/home/cache x\n"
    assert programs.kubectl("apply", stdin="manifest").endswith("apply\nmanifest")


def test_failure_quotes_the_last_line(tmp_path: Path) -> None:
    programs = make(tmp_path, "echo first >&2; echo the reason >&2; exit 3")
    with pytest.raises(ProgramError, match=r"^kubectl get failed: the reason$"):
        programs.kubectl("get")


def test_silent_failure(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="no output"):
        make(tmp_path, "exit 1").kubectl("get")


def test_timeout(tmp_path: Path) -> None:
    programs = make(tmp_path, "exec sleep 30")
    with pytest.raises(
        ProgramError, match=r"kubectl wait did not finish within 0.1 s; with --keep"
    ):
        programs.kubectl("wait", timeout_s=0.1)


def test_missing_program(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(ProgramError, match="cannot run missing"):
        Programs(missing, missing, missing, missing).kubectl("get")
