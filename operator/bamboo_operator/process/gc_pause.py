"""Pauses Python's garbage collector while a plan is computed.

Planning makes millions of objects and no cycles. The collector would visit them again and again,
which takes up to as long as the planning itself.
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
    """Disable the collector for the whole process. Pauses in several threads may overlap."""
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
