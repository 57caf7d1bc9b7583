"""Bandwidth between two agents: our channels beside plain gloo send and receive.

    python benchmarks/transport.py [--rounds 9] [--backend gloo | nccl] [--print]

Two processes on this machine, one thread each for computing. A turn sends 256 MB in messages of 4,
16 or 64 MB, in one direction, each received into new memory of the CPU. The turns of
`process_group`, `tcp` and the plain backend are interleaved, so that other load meets all of them.
With nccl each process takes a GPU of its own if there are two. --print writes no result file but
prints the figures.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import selectors
import socket
import statistics
import time
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed

from bamboo_agent.transport.base import Arrived, Frame
from bamboo_agent.transport.process_group.maker import Maker
from bamboo_agent.transport.tcp import TcpTransport
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.items import Item
from bamboo_core.protocol.messages import Peer
from bamboo_sim import arguments, results_file

A, B = AgentId("a"), AgentId("b")
FENCE = Fence(0, 1, 1)
SIZES_MB = (4, 16, 64)
TURN_MB = 256
KINDS = ("process_group", "tcp", "plain")
DEADLINE_S = 60.0
NOTE = (
    "over_gloo_N_mb: median over rounds of (bandwidth of process_group over gloo) / (bandwidth of"
    " plain gloo) with messages of N MB; process_group_over_gloo: the smallest of them, goal 0.9."
    " tcp_over_gloo_N_mb: the same for the channel tcp. KIND_N_mb_gb_per_s: medians; plain is gloo"
    " alone. Each message"
    f" is received into new memory. A turn sends {TURN_MB} MB; turns are interleaved"
)
_dist: Any = torch.distributed
_cuda: Any = torch.cuda


class Channel:
    """One end of `process_group` or `tcp`."""

    def __init__(self, agent: AgentId, groups: Maker | None) -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        host, port = listening.getsockname()
        self.peer = Peer(agent, f"{host}:{port}", "", agent.encode())
        self.maker = groups
        self._transport = TcpTransport(
            job="benchmark", agent=agent, listening=listening, groups=self.maker
        )
        self._step = 0

    def join(self, peer: Peer) -> None:
        self._transport.adopt(FENCE)
        self._transport.introduce(fence=FENCE, key=self.peer.key, peers={peer.agent: peer})

    def send(self, data: torch.Tensor, count: int) -> None:
        """Send it so many times, in a step of its own."""
        self._step += 1
        for index in range(count):
            self._transport.send(B, Frame(Item.out(self._step, 1, index), FENCE, tensors=(data,)))

    def receive(self, size: int, count: int) -> None:
        """Take so many messages."""
        left, deadline = count, time.monotonic() + DEADLINE_S
        with selectors.DefaultSelector() as selector:
            selector.register(self._transport, selectors.EVENT_READ)
            while left:
                assert selector.select(deadline - time.monotonic()), "no message"
                for event in self._transport.poll():
                    assert isinstance(event, Arrived), event
                    assert event.frame.num_bytes == size
                    left -= 1


def device_of(backend: str, rank: int) -> torch.device:
    """Two ranks share a GPU if there is only one."""
    if backend == "gloo":
        return torch.device("cpu")
    return torch.device(f"cuda:{rank % torch.cuda.device_count()}")


def make_ends(backend: str, agent: AgentId) -> dict[str, Channel]:
    """By kind, without the plain one. Ranks on one GPU are let through: agents refuse that."""
    device = device_of(backend, (A, B).index(agent))
    groups = {"process_group": Maker(backend, device=device), "tcp": None}
    return {kind: Channel(agent, maker) for kind, maker in groups.items()}


class Gloo:
    """One end of plain gloo."""

    def __init__(self, rank: int, store: Any) -> None:
        options = _dist.ProcessGroupGloo._Options()
        options._devices = [_dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        options._timeout = timedelta(seconds=DEADLINE_S)
        self._group = _dist.ProcessGroupGloo(store, rank, 2, options)

    def send(self, data: torch.Tensor, count: int) -> None:
        """Send it so many times."""
        for _ in range(count):
            self._group.send([data], 1, 0).wait()

    def receive(self, size: int, count: int) -> None:
        """Take so many messages."""
        for _ in range(count):
            self._group.recv([torch.empty(size, dtype=torch.uint8)], 0, 0).wait()


class Nccl:
    """One end of plain NCCL, with the copies between CPU and GPU that the channel makes, too."""

    def __init__(self, rank: int, store: Any) -> None:
        self._device = device_of("nccl", rank)
        options = _dist.ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=DEADLINE_S)
        self._group = _dist.ProcessGroupNCCL(store, rank, 2, options)

    def send(self, data: torch.Tensor, count: int) -> None:
        """Send it so many times."""
        for _ in range(count):
            self._group.send([data.to(self._device)], 1, 0).wait()
        _cuda.synchronize(self._device)

    def receive(self, size: int, count: int) -> None:
        """Take so many messages."""
        for _ in range(count):
            got = torch.empty(size, dtype=torch.uint8, device=self._device)
            self._group.recv([got], 0, 0).wait()
            got.cpu()


def plain(backend: str, rank: int, port: int) -> Gloo | Nccl:
    """One end of the backend alone."""
    store = _dist.TCPStore("127.0.0.1", port, 2, rank == 0, timedelta(seconds=DEADLINE_S))
    return Gloo(rank, store) if backend == "gloo" else Nccl(rank, store)


def receiver(pipe: Connection, backend: str, port: int) -> None:
    """The process of agent b: takes what it is told to expect."""
    torch.set_num_threads(1)
    channels = make_ends(backend, B)
    for channel in channels.values():
        pipe.send(channel.peer)
        channel.join(pipe.recv())
    ends: dict[str, Any] = {**channels, "plain": plain(backend, 1, port)}
    while (order := pipe.recv()) is not None:
        kind, size, count = order
        pipe.send("go")
        ends[kind].receive(size, count)
        pipe.send("done")


class Bench:
    """The process of agent a, which gives the orders."""

    def __init__(self, backend: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self._pipe, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=receiver, args=(theirs, backend, port), daemon=True)
        self._process.start()
        channels = make_ends(backend, A)
        for channel in channels.values():
            channel.join(self._pipe.recv())
            self._pipe.send(channel.peer)
        self._ends: dict[str, Any] = {**channels, "plain": plain(backend, 0, port)}

    def turn(self, kind: str, size: int, count: int) -> float:
        """Seconds from the first message to the last."""
        data = torch.ones(size, dtype=torch.uint8)
        self._pipe.send((kind, size, count))
        assert self._pipe.recv() == "go"
        start = time.perf_counter()
        self._ends[kind].send(data, count)
        assert self._pipe.recv() == "done"
        return time.perf_counter() - start

    def warm_up(self) -> None:
        """Until the group carries all large messages."""
        maker = self._ends["process_group"].maker
        deadline = time.monotonic() + DEADLINE_S
        while not maker.sent_pieces:
            assert time.monotonic() < deadline, "no group"
            self.turn("process_group", 1 << 20, 1)
        for kind in KINDS:
            self.turn(kind, 16_000_000, 4)

    def close(self) -> None:
        self._pipe.send(None)
        self._process.join()


def measure(backend: str, rounds: int) -> dict[str, list[float]]:
    """KIND_N_mb -> GB/s of each round."""
    bench = Bench(backend)
    bench.warm_up()
    found: dict[str, list[float]] = {}
    for number in range(rounds):
        for megabytes in SIZES_MB:
            shift = number % len(KINDS)
            for kind in KINDS[shift:] + KINDS[:shift]:
                count = TURN_MB // megabytes
                seconds = bench.turn(kind, megabytes * 1_000_000, count)
                rate = TURN_MB / 1000 / seconds
                found.setdefault(f"{kind}_{megabytes}_mb", []).append(round(rate, 3))
    bench.close()
    return found


def figures(backend: str, rates: dict[str, list[float]]) -> dict[str, float]:
    """Medians, and ratios within one round."""
    found = {
        f"{name}_gb_per_s": round(statistics.median(values), 2) for name, values in rates.items()
    }
    over = f"over_{backend}"
    for kind, name in (("process_group", over), ("tcp", f"tcp_{over}")):
        for megabytes in SIZES_MB:
            both = rates[f"{kind}_{megabytes}_mb"], rates[f"plain_{megabytes}_mb"]
            pairs = zip(*both, strict=True)
            ratio = statistics.median(ours / theirs for ours, theirs in pairs)
            found[f"{name}_{megabytes}_mb"] = round(ratio, 2)
    least = min(found[f"{over}_{megabytes}_mb"] for megabytes in SIZES_MB)
    return {f"process_group_{over}": least} | found


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--rounds", type=arguments.at_least(1), default=9)
    parser.add_argument("--backend", choices=["gloo", "nccl"], default="gloo")
    parser.add_argument("--print", action="store_true", help="write no result file")
    given = parser.parse_args()
    if given.backend == "nccl" and not torch.cuda.is_available():
        parser.error("--backend nccl needs a GPU, and torch sees none here")
    torch.set_num_threads(1)
    rates = measure(given.backend, given.rounds)
    found = figures(given.backend, rates)
    if given.print:
        print(json.dumps(found))
        return
    name = "transport" if given.backend == "gloo" else f"transport_over_{given.backend}"
    results_file.write(name, samples=rates, figures=found, note=NOTE.replace("gloo", given.backend))


if __name__ == "__main__":
    main()
