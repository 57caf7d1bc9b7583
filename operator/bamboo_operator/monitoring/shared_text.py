"""A text that is costly to make: at most one at a time, and one for all who ask within a while."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

KEPT_S = 1.0
SHARE = 0.2
"""Of a processor that goes to making the text, at most: a long one is kept for longer."""


class SharedText:
    """``make`` is called by the thread that asks. If it fails, that is kept and logged, too."""

    def __init__(
        self, make: Callable[[], bytes | None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._make, self._clock = make, clock
        self._lock = threading.Lock()
        self._text: bytes | None = None
        self._until = float("-inf")

    def get(self) -> bytes | None:
        """The text; None: it could not be made."""
        with self._lock:
            if self._clock() >= self._until:
                self._text = None  # so that there are never two
                began = time.thread_time()
                try:
                    self._text = self._make()
                except Exception:
                    log.exception("a text cannot be made")
                used_s = time.thread_time() - began
                self._until = self._clock() + max(KEPT_S, used_s * (1 / SHARE - 1))
            return self._text
