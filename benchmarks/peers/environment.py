"""The virtual environment of torchft, in the user's cache: it does not enter the project's lock.

It holds torchft and what only torchft needs, and sees the project's own environment, so that all
systems run with the same torch.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from bamboo_sim.programs.results_file import PROGRESS, ROOT

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
CACHE = PROGRESS.parent
MAKE = """
source scripts/lib.sh
uv=$(bootstrap_uv)
export_uv_settings
"$uv" venv --quiet --clear --python "$1" "$2"
export VIRTUAL_ENV=$2
run_or_explain "installing torchft" "$uv" pip install --no-deps --no-build --require-hashes -r "$3"
"""
SEES = "import site; site.addsitedir({path!r})\n"


def interpreter() -> Path:
    """The environment's Python; the environment is made at the first use.

    SystemExit if that is impossible, with what to do.
    """
    content = REQUIREMENTS.read_bytes() + f"{sys.version}{_packages()}".encode()
    home = CACHE / f"peers-{hashlib.sha256(content).hexdigest()[:12]}"
    if not home.exists():
        _make(home)
    return home / "bin" / "python"


def _packages() -> Path:
    """Where this interpreter's packages are."""
    return Path(sysconfig.get_path("purelib"))


def _make(home: Path) -> None:
    new = home.with_name(f"{home.name}.new.{os.getpid()}")
    new.parent.mkdir(parents=True, exist_ok=True)
    arguments = [sys.executable, str(new), str(REQUIREMENTS)]
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", MAKE, "make", *arguments], cwd=ROOT)
    if done.returncode:
        shutil.rmtree(new, ignore_errors=True)
        raise SystemExit(
            "the environment of torchft cannot be made (its own message is above); torchft 0.2.0"
            " was tried with Python 3.11 on Linux with x86; --only bamboo and --only torchrun go"
            " without it"
        )
    (packages,) = new.glob("lib/python*/site-packages")
    (packages / "bamboo.pth").write_text(SEES.format(path=str(_packages())))
    try:
        new.replace(home)
    except OSError:  # another run has made it meanwhile
        shutil.rmtree(new)
