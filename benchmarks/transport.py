"""Bandwidth between two agents: our channels beside plain gloo send and receive.

    python benchmarks/transport.py [--rounds 9] [--backend gloo | nccl] [--print]

Two processes on this machine, one thread each for computing. A turn sends 1 GB in messages of 4,
16 or 64 MB, in one direction, from tensors of 256 MB. The turns of one size follow each other, as a
pipeline repeats its sizes, and are interleaved, so that other load meets all of these:

- process_group, tcp, encrypted: our channels, in the lane of boundary tensors; with _bulk: in that
  of sums. encrypted: tcp with TLS, as agents use it unless spec.transport.encryption is Off.
- plain: the backend alone, message by message, each into a new tensor that is dropped at once. For
  4 and 16 MB the allocator gives the same memory again and again.
- plain_ahead: 4 messages under way at a time, into 4 tensors that are used in turn: the most that
  the backend alone does here. A pipeline cannot: it keeps what it has received.

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
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed

from bamboo_agent.payloads.frames import Frame
from bamboo_agent.transport.base import Arrived
from bamboo_agent.transport.process_group.maker import Maker
from bamboo_agent.transport.stream import Identity, make_identity
from bamboo_agent.transport.tcp import TcpTransport
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.items import Item
from bamboo_core.protocol.messages import Peer
from bamboo_sim.programs import arguments, results_file

A, B = AgentId("a"), AgentId("b")
FENCE = Fence(0, 1, 1)
SIZES_MB = (4, 16, 64)
TURN_MB = 1024  # long enough that the beginning of a turn does not count
TENSORS_MB = 256
CHANNELS = ("process_group", "process_group_bulk", "tcp", "tcp_bulk", "encrypted")
PLAIN = ("plain", "plain_ahead")
KINDS = (*CHANNELS, *PLAIN)
AHEAD = 4
DEADLINE_S = 60.0
NOTE = (
    "KIND_over_gloo_N_mb: median over rounds of (bandwidth of KIND) / (that of plain gloo), with"
    " messages of N MB; process_group_over_gloo: the smallest of process_group, goal 0.9;"
    " encryption_over_plain: the smallest of tcp with TLS over tcp without."
    " plain: gloo alone, message by message, each into a new tensor that is dropped at once."
    f" plain_ahead: {AHEAD} messages under way at a time, into {AHEAD} tensors that are used in"
    " turn. KIND_over_gloo_ahead_N_mb: the same ratios to it. _bulk: in the lane of sums."
    " KIND_N_mb_gb_per_s: medians."
    f" A turn sends {TURN_MB} MB from tensors of {TENSORS_MB} MB; turns are interleaved"
)
_dist: Any = torch.distributed
_cuda: Any = torch.cuda


class Channel:
    """One end of `process_group` or `tcp`."""

    def __init__(
        self, agent: AgentId, groups: Maker | None, identity: Identity | None, *, bulk: bool
    ) -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        host, port = listening.getsockname()
        self.peer = Peer(agent, f"{host}:{port}", "", agent.encode())
        self.maker, self._bulk = groups, bulk
        self._transport = TcpTransport(
            job="benchmark",
            agent=agent,
            listening=listening,
            groups=self.maker,
            identity=identity,
        )
        self._step = 0

    def join(self, peer: Peer) -> None:
        self._transport.adopt(FENCE)
        self._transport.introduce(fence=FENCE, key=self.peer.key, peers={peer.agent: peer})

    def send(self, data: Sequence[torch.Tensor]) -> None:
        """Send them in a step of their own."""
        self._step += 1
        for index, each in enumerate(data):
            out, whole = (
                Item.out(self._step, 1, index),
                Item.sum(self._step, (1, 2), (index, index + 1)),
            )
            self._transport.send(B, Frame(whole if self._bulk else out, FENCE, tensors=(each,)))

    def receive(self, size: int, count: int) -> None:
        """Take so many messages, and drop each."""
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


def make_channels(backend: str, agent: AgentId) -> dict[str, Channel]:
    """By kind. Ranks on one GPU are let through: agents refuse that."""
    device = device_of(backend, (A, B).index(agent))
    return {
        kind: Channel(
            agent,
            Maker(backend, device=device) if kind.startswith("process_group") else None,
            make_identity() if kind == "encrypted" else None,
            bulk=kind.endswith("bulk"),
        )
        for kind in CHANNELS
    }


class Plain:
    """One end of the backend alone, with the copies to and from a GPU that the channel makes, too.

    ahead: messages under way at a time; 1: each into a new tensor.
    """

    def __init__(self, group: Any, device: torch.device, ahead: int) -> None:
        self._group, self._device, self._ahead = group, device, ahead
        self._places: list[torch.Tensor] = []

    def send(self, data: Sequence[torch.Tensor]) -> None:
        """Send them."""
        posted: deque[Any] = deque()
        for each in data:
            posted.append(self._group.send([each.to(self._device)], 1, 0))
            if len(posted) == self._ahead:
                posted.popleft().wait()
        for work in posted:
            work.wait()
        self._synchronize()

    def receive(self, size: int, count: int) -> None:
        """Take so many messages."""
        posted: deque[tuple[Any, torch.Tensor]] = deque()
        for number in range(count):
            place = self._place(size, number)
            posted.append((self._group.recv([place], 0, 0), place))
            del place
            if len(posted) == self._ahead:
                self._take(*posted.popleft())
        while posted:
            self._take(*posted.popleft())

    def _place(self, size: int, number: int) -> torch.Tensor:
        if self._ahead > 1 and self._places and self._places[0].numel() == size:
            return self._places[number % self._ahead]
        new = [
            torch.empty(size, dtype=torch.uint8, device=self._device) for _ in range(self._ahead)
        ]
        if self._ahead > 1:
            self._places = new
        return new[0]

    def _take(self, work: Any, place: torch.Tensor) -> None:
        work.wait()
        place.cpu()

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            _cuda.synchronize(self._device)


def make_plain(backend: str, rank: int, port: int) -> dict[str, Plain]:
    """By kind. Each has a group of its own."""
    store = _dist.TCPStore("127.0.0.1", port, 2, rank == 0, timedelta(seconds=DEADLINE_S))
    device, made = device_of(backend, rank), {}
    for kind in PLAIN:
        prefixed = _dist.PrefixStore(kind, store)
        if backend == "gloo":
            options = _dist.ProcessGroupGloo._Options()
            options._devices = [_dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
            options._timeout = timedelta(seconds=DEADLINE_S)
            group = _dist.ProcessGroupGloo(prefixed, rank, 2, options)
        else:
            options = _dist.ProcessGroupNCCL.Options()
            options._timeout = timedelta(seconds=DEADLINE_S)
            group = _dist.ProcessGroupNCCL(prefixed, rank, 2, options)
        made[kind] = Plain(group, device, AHEAD if kind.endswith("ahead") else 1)
    return made


def receiver(pipe: Connection, backend: str, port: int) -> None:
    """The process of agent b: takes what it is told to expect."""
    torch.set_num_threads(1)
    channels = make_channels(backend, B)
    for channel in channels.values():
        pipe.send(channel.peer)
        channel.join(pipe.recv())
    ends: dict[str, Channel | Plain] = {**channels, **make_plain(backend, 1, port)}
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
        channels = make_channels(backend, A)
        for channel in channels.values():
            channel.join(self._pipe.recv())
            self._pipe.send(channel.peer)
        self._ends: dict[str, Any] = {**channels, **make_plain(backend, 0, port)}
        self._data = torch.ones(TENSORS_MB * 1_000_000, dtype=torch.uint8)

    def turn(self, kind: str, size: int, count: int) -> float:
        """Seconds from the first message to the last."""
        starts = range(0, self._data.numel() - size + 1, size)
        tensors = [self._data[at : at + size] for at in starts]
        data = [tensors[at % len(tensors)] for at in range(count)]
        self._pipe.send((kind, size, count))
        assert self._pipe.recv() == "go"
        start = time.perf_counter()
        self._ends[kind].send(data)
        assert self._pipe.recv() == "done"
        return time.perf_counter() - start

    def _sent_pieces(self, kind: str) -> int:
        """By groups, so far."""
        maker = self._ends[kind].maker if kind in CHANNELS else None
        return 0 if maker is None else maker.sent_pieces

    def measured_turn(self, kind: str, size: int, count: int) -> float:
        """The same. AssertionError if a process group has not carried all messages."""
        before = self._sent_pieces(kind)
        seconds = self.turn(kind, size, count)
        if kind.startswith("process_group"):
            assert self._sent_pieces(kind) >= before + count, f"{kind} has fallen back to tcp"
        return seconds

    def warm_up(self) -> None:
        """Until groups carry all large messages."""
        deadline = time.monotonic() + DEADLINE_S
        for kind in KINDS:
            while kind.startswith("process_group") and not self._sent_pieces(kind):
                assert time.monotonic() < deadline, "no group"
                self.turn(kind, 1 << 20, 1)
            self.turn(kind, 16_000_000, 4)

    def close(self) -> None:
        self._pipe.send(None)
        self._process.join()


def measure(backend: str, rounds: int) -> dict[str, list[float]]:
    """KIND_N_mb -> GB/s of each round."""
    bench = Bench(backend)
    bench.warm_up()
    found: dict[str, list[float]] = {}
    for megabytes in SIZES_MB:
        size, count = megabytes * 1_000_000, TURN_MB // megabytes
        for kind in KINDS:
            bench.turn(kind, size, count)
        for number in range(rounds):
            shift = number % len(KINDS)
            for kind in KINDS[shift:] + KINDS[:shift]:
                rate = TURN_MB / 1000 / bench.measured_turn(kind, size, count)
                found.setdefault(f"{kind}_{megabytes}_mb", []).append(round(rate, 3))
    bench.close()
    return found


def figures(backend: str, rates: dict[str, list[float]]) -> dict[str, float]:
    """Medians, and ratios within one round."""
    found = {
        f"{name}_gb_per_s": round(statistics.median(values), 2) for name, values in rates.items()
    }
    for kind in CHANNELS:
        for megabytes in SIZES_MB:
            for plain in PLAIN:
                both = rates[f"{kind}_{megabytes}_mb"], rates[f"{plain}_{megabytes}_mb"]
                pairs = zip(*both, strict=True)
                ratio = statistics.median(ours / theirs for ours, theirs in pairs)
                beside = plain.replace("plain", backend)
                found[f"{kind}_over_{beside}_{megabytes}_mb"] = round(ratio, 2)
    for megabytes in SIZES_MB:
        both = rates[f"encrypted_{megabytes}_mb"], rates[f"tcp_{megabytes}_mb"]
        ratio = statistics.median(ours / theirs for ours, theirs in zip(*both, strict=True))
        found[f"encrypted_over_tcp_{megabytes}_mb"] = round(ratio, 2)
    headline = f"process_group_over_{backend}"
    heads = {headline: headline, "encryption_over_plain": "encrypted_over_tcp"}
    least = {
        head: min(found[f"{ratio}_{megabytes}_mb"] for megabytes in SIZES_MB)
        for head, ratio in heads.items()
    }
    return least | found


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
