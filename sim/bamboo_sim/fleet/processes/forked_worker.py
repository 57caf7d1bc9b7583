"""A stand-in for the worker's process: asks the forkserver for a worker and ends as it does.

Writes the worker's process id to ``$BAMBOO_FLEET_PIDS/AGENT``.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
from pathlib import Path

from bamboo_sim.fleet.processes.forkserver import MAX_REQUEST


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--agent", required=True)
    for name in ("--fd", "--data-fd", "--progress-fd"):
        parser.add_argument(name, type=int, required=True)
    given = parser.parse_args()
    fds = [2, given.fd, given.data_fd, given.progress_fd]
    forkserver = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    forkserver.connect(os.environ["BAMBOO_FLEET_FORKSERVER"])
    request = {
        "agent": given.agent,
        "environment": dict(os.environ),
        "supervisor": os.getppid(),
    }
    socket.send_fds(forkserver, [json.dumps(request).encode()], fds)
    for fd in fds:
        os.close(fd)
    pid = json.loads(forkserver.recv(MAX_REQUEST))["pid"]
    (Path(os.environ["BAMBOO_FLEET_PIDS"]) / given.agent).write_text(str(pid))
    status = int(json.loads(forkserver.recv(MAX_REQUEST))["status"])
    if status < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return status


if __name__ == "__main__":
    sys.exit(main())
