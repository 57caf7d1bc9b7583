"""Builds programs from their Go modules, which `tools/*/go.mod` and go.sum pin."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bamboo_devcluster.errors import BinaryError, disk_full_message

_TOOLS = Path(__file__).with_name("tools")
_PERCENT_STEP = 10
_LAST_LINES = 3


@dataclass(frozen=True)
class Recipe:
    """How one program is built."""

    module: str  # folder under tools/
    package: str
    ldflags: str = "-s -w"


def find_recipe(program: str, *, kubernetes: str, helm: str) -> Recipe:
    """Return how to build a program."""
    if program == "etcd":
        return Recipe("etcd", "go.etcd.io/etcd/server/v3")
    if program == "helm":
        version = f"-X helm.sh/helm/v4/internal/version.version=v{helm}"
        return Recipe("helm", "helm.sh/helm/v4/cmd/helm", f"-s -w {version}")
    # Its own module: nobody who has only process nodes should need its dependencies.
    module = "kubelet" if program in ("kubelet", "kube-proxy") else "kubernetes"
    major, minor, _ = kubernetes.split(".")
    version = "k8s.io/component-base/version"
    # Without these the server reports v0.0.0, and clients complain.
    stamps = f"-X {version}.gitVersion=v{kubernetes} -X {version}.gitMajor={major}"
    stamps += f" -X {version}.gitMinor={minor}"
    return Recipe(module, f"k8s.io/kubernetes/cmd/{program}", f"-s -w {stamps}")


def build(program: str, recipe: Recipe, target: Path, report: Callable[[str], None]) -> None:
    """Build one program into `target`; raise BinaryError if that fails."""
    go = shutil.which("go")
    if go is None:
        raise BinaryError(
            f"{program} can be neither downloaded nor built: `go` is not on the PATH; install Go "
            "1.26 or newer, or set KUBEBUILDER_ASSETS to a folder with the programs."
        )
    folder = _TOOLS / recipe.module
    report(f"{program}: building from Go modules")
    total = _count_packages(go, folder, recipe.package)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".build-{program}-") as scratch:
        output = Path(scratch) / program
        command = [go, "build", "-v", "-trimpath", "-ldflags", recipe.ldflags, "-o", str(output)]
        _run_build(program, [*command, recipe.package], folder, _Progress(program, total, report))
        output.rename(target)


def module_folder(tools: str, module: str) -> Path:
    """Return the folder with the files of a module that `tools/{tools}` pins, once it is built."""
    result = subprocess.run(
        ["go", "list", "-m", "-f", "{{.Dir}}", module], cwd=_TOOLS / tools, env=_environment(),
        text=True, capture_output=True, check=False,
    )  # fmt: skip
    if result.returncode or not result.stdout.strip():
        raise BinaryError(f"The files of {module} cannot be found: {result.stderr.strip()}")
    return Path(result.stdout.strip())


class _Progress:
    """Counts compiled packages; reports every few percent."""

    def __init__(self, program: str, total: int, report: Callable[[str], None]) -> None:
        self._program, self._total, self._report = program, max(total, 1), report
        self._done = self._shown = 0

    def add(self) -> None:
        """Count one more package."""
        self._done += 1
        percent = min(99, 100 * self._done // self._total)
        if percent >= self._shown + _PERCENT_STEP:
            self._shown = percent - percent % _PERCENT_STEP
            self._report(f"{self._program}: {self._done} of {self._total} packages compiled")


def _run_build(program: str, command: Sequence[str], folder: Path, progress: _Progress) -> None:
    process = subprocess.Popen(
        command, cwd=folder, env=_environment(), text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    messages: list[str] = []
    with process.stderr:
        for line in process.stderr:
            text = line.strip()
            if " " in text or text.startswith("#"):
                messages.append(text)  # a message of go; package names contain no blanks
            elif text:
                progress.add()
    if process.wait() == 0:
        return
    text = "; ".join(messages[-_LAST_LINES:]) or f"code {process.returncode}"
    if "no space left on device" in text:
        raise BinaryError(disk_full_message("the Go build cache and the program cache"))
    raise BinaryError(f"{program} could not be built from its Go module: {text}")


def _count_packages(go: str, folder: Path, package: str) -> int:
    result = subprocess.run(
        [go, "list", "-deps", package], cwd=folder, env=_environment(), text=True,
        capture_output=True, check=False,
    )  # fmt: skip
    return len(result.stdout.splitlines())


def _environment() -> dict[str, str]:
    # The user's workspace and vendor settings must not affect the pinned modules.
    return {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off", "GOFLAGS": "-buildvcs=false"}
