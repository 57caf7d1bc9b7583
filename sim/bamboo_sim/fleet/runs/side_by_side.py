"""Several fleets at once, each in a process with its own operator: most of a fault is waiting."""

from __future__ import annotations

import multiprocessing
import os
import queue
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.queues import Queue
from typing import TypeAlias, TypeVar

from bamboo_agent.supervisor.launch import die_with

_Order = TypeVar("_Order")
_Row = TypeVar("_Row")
Rows: TypeAlias = "Queue[_Row]"
POLL_S = 0.5


def rows(serve: Callable[[_Order, Rows[_Row]], None], orders: Sequence[_Order]) -> Iterator[_Row]:
    """Run ``serve`` in one process for each order; what they put into their queue, as it comes.

    RuntimeError if a process has failed. They end with this process.
    """
    spawn = multiprocessing.get_context("spawn")
    shared: Rows[_Row] = spawn.Queue()
    processes = [
        spawn.Process(target=_serve, args=(os.getpid(), serve, order, shared)) for order in orders
    ]
    for process in processes:
        process.start()
    while any(process.is_alive() for process in processes) or not shared.empty():
        try:
            row = shared.get(timeout=POLL_S)
        except queue.Empty:
            continue
        yield row
    codes = [process.exitcode for process in processes]
    if any(codes):
        raise RuntimeError(f"the processes ended with {codes}")


def _serve(
    parent: int, serve: Callable[[_Order, Rows[_Row]], None], order: _Order, shared: Rows[_Row]
) -> None:
    die_with(parent)
    serve(order, shared)
