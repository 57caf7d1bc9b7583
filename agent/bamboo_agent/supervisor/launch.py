"""Run a module in a process that cannot outlive its parent.

    python -m bamboo_agent.supervisor.launch PARENT_PID MODULE [ARGUMENT ...]

The kernel kills this process when its parent dies, for whatever reason. This is not done between
fork and exec, where a process with threads must not run Python. The process also lowers its own
priority: the parent's heartbeats must not be delayed, since they show that this agent is alive.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys

_PR_SET_PDEATHSIG = 1
_NICENESS = 5


def die_with(parent: int) -> None:
    """Ask the kernel to SIGKILL this process when ``parent`` ends; SystemExit if it already has."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        raise SystemExit(f"the parent process {parent} has already ended")


def main() -> None:
    """Entry point."""
    parent, module, *arguments = sys.argv[1:]
    die_with(int(parent))
    os.nice(_NICENESS)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the parent handles them
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
