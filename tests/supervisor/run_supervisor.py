"""The agent's main process with a worker module of the test's choice."""

from __future__ import annotations

import sys

from bamboo_agent import supervisor
from bamboo_agent.__main__ import main

if __name__ == "__main__":
    supervisor.WORKER_MODULE = sys.argv[1]
    main()
