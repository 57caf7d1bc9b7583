"""Run a module in a process that cannot outlive its parent.

    python -m bamboo_agent.supervisor.launch PARENT_PID MODULE [ARGUMENT ...]

The kernel kills this process when its parent dies, for whatever reason. This is not done between
fork and exec, where a process with threads must not run Python. The process also lowers its own
priority: the parent's heartbeats must not be delayed, since they show that this agent is alive.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys

from bamboo_agent.ipc.parent import die_with as die_with

_NICENESS = 5


def main() -> None:
    """Entry point."""
    parent, module, *arguments = sys.argv[1:]
    die_with(int(parent))
    os.nice(max(0, _NICENESS - os.nice(0)))  # the parent may be launched so, too
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the parent handles them
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
