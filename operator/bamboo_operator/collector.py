"""Keeps Python's garbage collector out of computations that make many objects and no cycles.

The collector looks at all objects again and again while a plan's programs are made, which takes
as long as the planning itself; reference counts free everything at once anyway.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_pauses = 0


@contextmanager
def paused() -> Iterator[None]:
    """No collection inside, in no thread of the process; several may overlap."""
    global _pauses
    with _lock:
        _pauses += 1
        gc.disable()
    try:
        yield
    finally:
        with _lock:
            _pauses -= 1
            if not _pauses:
                gc.enable()
