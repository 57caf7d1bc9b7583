"""Programs that the quick start runs: kubectl and helm, against one cluster."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bamboo_cli.errors import ProgramError


@dataclass(frozen=True)
class Programs:
    """kubectl and helm with a kubeconfig."""

    kubectl_path: Path
    helm_path: Path
    kubeconfig: Path
    home: Path  # for helm's own files

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout_s: float = 60) -> str:
        """Run kubectl and return its output. ProgramError if it fails."""
        return self._run([self.kubectl_path, *arguments], stdin, timeout_s)

    def helm(self, *arguments: str, timeout_s: float = 120) -> str:
        """Run helm and return its output. ProgramError if it fails."""
        return self._run([self.helm_path, *arguments], None, timeout_s)

    def _run(self, argv: Sequence[str | Path], stdin: str | None, timeout_s: float) -> str:
        environment = {
            **os.environ,
            "KUBECONFIG": str(self.kubeconfig),
            "HELM_CACHE_HOME": str(self.home / "cache"),
            "HELM_CONFIG_HOME": str(self.home / "config"),
            "HELM_DATA_HOME": str(self.home / "data"),
        }
        name = Path(argv[0]).name
        try:
            done = subprocess.run(
                argv, env=environment, input=stdin or "", capture_output=True, text=True,
                timeout=timeout_s, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise ProgramError(
                f"{name} {argv[1]} did not finish within {timeout_s:g} s; with --keep, the cluster"
                " stays up for examination."
            ) from error
        except OSError as error:
            raise ProgramError(f"cannot run {name}: {error}") from error
        if done.returncode:
            lines = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()
            raise ProgramError(f"{name} {argv[1]} failed: {lines[-1]}")
        return done.stdout
