"""A process that has not imported the core, as the killers need it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HEAD = """
import json, os, signal, sys, time
from bamboo_sim.mutation import children

def ended(work, silence_s=60.0):
    children.SILENCE_S = silence_s
    group = children.Children(1)
    group.start("", work)
    (found,) = group.ended()
    return found
"""


def run(code: str, cache: Path) -> Any:
    """The value that the code assigns to ``result``."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"{HEAD}{code}\nprint(json.dumps(result))"],
        env={**os.environ, "PYTHONHASHSEED": "0", "XDG_CACHE_HOME": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
