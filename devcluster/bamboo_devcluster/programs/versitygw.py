"""The S3 server of tests; built from its Go module, which `tools/versitygw` pins.

Kept apart from the other programs: only what writes checkpoints to a bucket needs it.
"""

import os
from collections.abc import Callable
from pathlib import Path

from bamboo_devcluster.programs import cache, gobuild

VERSION = "1.8.0"
_RECIPE = gobuild.Recipe(
    "versitygw", "github.com/versity/versitygw/cmd/versitygw", f"-s -w -X main.Version=v{VERSION}"
)


def cache_directory() -> Path:
    """Return the folder, outside the checkout, that caches the program."""
    return cache.folder(f"versitygw-{VERSION}")


def ensure(report: Callable[[str], None]) -> Path:
    """Return the program's path; build it if it is missing.

    Safe to call concurrently. BinaryError if it cannot be built.
    """
    program = cache_directory() / "versitygw"
    if not os.access(program, os.X_OK):
        with cache.locked(cache_directory()):
            if not os.access(program, os.X_OK):
                gobuild.build("versitygw", _RECIPE, program, report)
    return program
