"""The agent's main process with another worker module and the fleet's faults, if there is a fleet;
it dies with its parent."""

from __future__ import annotations

import os
import sys

from bamboo_agent.__main__ import main
from bamboo_agent.supervisor import shell
from bamboo_agent.supervisor.launch import die_with
from bamboo_sim.fleet.injection import inside, state
from bamboo_sim.fleet.injection.effects import patched

if __name__ == "__main__":
    die_with(os.getppid())
    patched(shell, "WORKER_MODULE", sys.argv[1])
    if state.FOLDER_VARIABLE in os.environ:
        inside.install_in_supervisor(inside.begin("supervisor"))
    main()
