"""The environment variables of the processes that a cluster starts."""

import os
import sys
from pathlib import Path


def program_env() -> dict[str, str]:
    """Return the environment of a program of the cluster itself."""
    # The programs must not use the proxy settings of the user's shell.
    return {"PATH": os.environ.get("PATH", os.defpath), "HOME": os.environ.get("HOME", "/")}


def container_path() -> str:
    """Return the PATH of containers: this Python's folder, then the user's PATH."""
    return f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
