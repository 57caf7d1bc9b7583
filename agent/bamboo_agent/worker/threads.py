"""No thread of the worker dies unseen: the process ends with it, and the pod is replaced."""

from __future__ import annotations

import logging
import os
import sys
import threading
import traceback

from bamboo_core.protocol.exit_codes import ExitCode


def end_with_any_thread() -> None:
    """From now on, an exception that a thread does not handle ends the process."""
    threading.excepthook = _end


def _end(died: threading.ExceptHookArgs) -> None:
    if died.exc_type is SystemExit:
        return
    name = died.thread.name if died.thread is not None else "unknown"
    print(f"thread {name} has died:", file=sys.stderr)
    traceback.print_exception(died.exc_type, died.exc_value, died.exc_traceback)
    logging.shutdown()
    sys.stderr.flush()
    os._exit(ExitCode.THREAD_DIED)
