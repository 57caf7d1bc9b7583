"""The process that forks those that read samples, as a program: a worker starts it when the one
that it has forked has died.

    python -m bamboo_agent.worker.reader_server --fd N
"""

from __future__ import annotations

import argparse
import socket
from collections.abc import Sequence

from bamboo_agent.loading import server
from bamboo_agent.setup.determinism import make_deterministic
from bamboo_agent.setup.lazy_dynamo import defer_import


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until the worker has gone."""
    parser = argparse.ArgumentParser(prog="bamboo_agent.worker.reader_server")
    parser.add_argument("--fd", type=int, required=True)
    given = parser.parse_args(arguments)
    make_deterministic()
    defer_import()
    server.serve(socket.socket(fileno=given.fd))


if __name__ == "__main__":
    main()
