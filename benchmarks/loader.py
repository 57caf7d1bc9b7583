"""What reading samples costs the thread that issues work to the device.

    python benchmarks/loader.py [--rounds 7] [--print]

- Issue: a tiny operation of torch, again and again in one thread: alone, beside a thread that reads
  samples, and beside a process that does so and hands the micro-batches over. Turns are
  interleaved. The samples are texts that are cut into words in Python, or slices of a mapped file.
- Handing over: a process writes a micro-batch into new memory without a name (memfd) and sends its
  descriptor; this one reads it into new memory of its own, as a worker does. Beside it: to copy it
  out of memory that both keep, and to map it and look at every page.
- Exposed wait: one worker trains a GPT, and its samples sleep, so that reading those of a step
  takes half as long as computing it. The share of a step in which the worker waits for samples or
  takes them over, with one process that reads, and without one, as before there were any.

--print writes no result file but prints the figures.
"""

from __future__ import annotations

import argparse
import json
import mmap
import multiprocessing
import os
import re
import select
import socket
import statistics
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bamboo_agent.data.needs import Part
from bamboo_agent.datasets.text import Windows, read_sources
from bamboo_agent.loading import server
from bamboo_agent.loading.handing import Handed, hand_over, taken
from bamboo_agent.loading.loader import Limits, Loader
from bamboo_agent.worker.shell import Worker
from bamboo_core.api.spec import (
    DataSpec,
    JobSpec,
    ModelSpec,
    OptimizerSpec,
    PipelinesSpec,
    TrainingSpec,
    WorkerSpec,
    to_json,
)
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.numerics import BatchShape
from bamboo_core.protocol.messages import Progress
from bamboo_sim.programs import arguments, results_file
from bamboo_sim.workers import plans
from bamboo_sim.workers.in_process_fleet import InProcessFleet

TURN_S = 0.5
SAMPLES, CONTEXT = 8, 1024  # of a micro-batch
SIZES = {"64_kb": 1 << 16, "1_mb": 1 << 20, "16_mb": 1 << 24}
REPEATS = 20
MODEL: dict[str, Any] = {"layers": 4, "width": 256, "heads": 4, "context": 128}
STEPS, BATCH = 8, 32
(ALONE,) = plans.names(1)
_NUMBERS = struct.Struct("=3q")
NOTE = (
    "exposed_wait_share: share of a step in which a worker waits for samples or takes them over,"
    " with one process that reads; _before: without one. Samples sleep, so that those of a step"
    f" take half as long as it computes; GPT {MODEL}, {BATCH} samples a step, {STEPS} steps;"
    " _step_over_computing: its step over one with samples that are there at once; all 1.0, or 1.5"
    " without a process that reads, on an idle machine."
    " thread_over_alone_KIND, process_over_alone_KIND: mean time of a tiny operation of torch"
    " beside a thread or a process that reads samples, over that alone, medians over rounds; KIND:"
    " words (texts cut in Python) or slices (of a mapped file). thread_read_over_process_KIND:"
    " samples that the thread reads meanwhile, over those of the process. take_N_us: to receive a"
    " micro-batch of N and read it into new memory; map_N_us: to map it instead; copy_N_us: to copy"
    " as much out of memory that both keep; write_N_gb_per_s: the process that hands it over."
    f" Turns of {TURN_S} s on 2 cores, interleaved; micro-batches of {SAMPLES} samples"
)
_WORD = re.compile(r"\w+|[^\w\s]")
_WORDS = [f"word{i}" for i in range(5000)]
_CODES = {word: code for code, word in enumerate(_WORDS)}
_TEXT = " ".join(_WORDS[i * 7919 % len(_WORDS)] for i in range(400))


def words() -> torch.Tensor:
    """A micro-batch of texts, cut into words in Python."""
    rows = [[_CODES.get(word, 0) for word in _WORD.findall(_TEXT)] for _ in range(SAMPLES)]
    return torch.stack([torch.tensor(row) for row in rows])


class Slices:
    """Micro-batches of slices of a mapped file."""

    def __init__(self, path: Path) -> None:
        numbers = np.random.default_rng(0).integers(0, 60_000, 1 << 24, dtype=np.uint16)
        numbers.tofile(path)
        self._mapped = np.memmap(path, dtype=np.uint16, mode="r")
        self._draw = np.random.default_rng(1)

    def __call__(self) -> torch.Tensor:
        starts = self._draw.integers(0, len(self._mapped) - CONTEXT, SAMPLES)
        rows = [self._mapped[at : at + CONTEXT].astype(np.int64) for at in starts]
        return torch.stack([torch.from_numpy(row) for row in rows])


def read(make: Callable[[], torch.Tensor], stop: Any, count: Any) -> None:
    """Read micro-batches until it is told to stop."""
    while not stop.is_set():
        make()
        count.value += 1


@contextmanager
def reading(kind: str, make: Callable[[], torch.Tensor], count: Any) -> Iterator[None]:
    """Samples are read meanwhile. kind: alone (nobody reads), thread or process."""
    if kind == "alone":
        yield
        return
    fork = multiprocessing.get_context("fork")
    stop = threading.Event() if kind == "thread" else fork.Event()
    make_reader: Any = threading.Thread if kind == "thread" else fork.Process
    reader = make_reader(target=read, args=(make, stop, count))
    reader.start()
    try:
        while not count.value:
            time.sleep(0.001)
        yield
    finally:
        stop.set()
        reader.join()


def issue_s() -> float:
    """Mean time of a tiny operation."""
    value, count = torch.zeros(64), 0
    begun = now = time.perf_counter()
    while now < begun + TURN_S:
        for _ in range(100):
            value.add_(1.0)
        count += 100
        now = time.perf_counter()
    return (now - begun) / count


def measure_issue(rounds: int) -> dict[str, list[float]]:
    """KIND_READER -> microseconds of each round, or micro-batches that were read."""
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        sets: dict[str, Callable[[], torch.Tensor]] = {
            "words": words,
            "slices": Slices(Path(folder) / "numbers"),
        }
        for _ in range(rounds):
            for name, make in sets.items():
                for kind in ("alone", "thread", "process"):
                    count = multiprocessing.Value("q", 0)
                    with reading(kind, make, count):
                        found.setdefault(f"{kind}_{name}_us", []).append(round(issue_s() * 1e6, 3))
                    found.setdefault(f"{kind}_{name}_read", []).append(count.value)
    return found


def give(channel: socket.socket, size: int) -> None:
    """The process that hands micro-batches over: one for each byte that it gets."""
    data = torch.ones(size, dtype=torch.uint8)
    while channel.recv(1):
        begun = time.perf_counter()
        handed = hand_over({Part.INPUT: data})
        taken_ns = round((time.perf_counter() - begun) * 1e9)
        numbers = _NUMBERS.pack(taken_ns, handed.header, handed.body)
        socket.send_fds(channel, [numbers], [handed.memory])
        os.close(handed.memory)


def measure_handing(rounds: int) -> dict[str, list[float]]:
    """Microseconds of each round to take, to map and to copy, and GB/s of the writer, by size."""
    found: dict[str, list[float]] = {}
    fork = multiprocessing.get_context("fork")
    for name, size in SIZES.items():
        ours, theirs = socket.socketpair()
        process = fork.Process(target=give, args=(theirs, size), daemon=True)
        process.start()
        kept, place = torch.ones(size, dtype=torch.uint8), torch.ones(size, dtype=torch.uint8)
        for _ in range(rounds * REPEATS):
            ours.send(b"1")
            select.select([ours], [], [])
            begun = time.perf_counter()
            told, (memory,), _, _ = socket.recv_fds(ours, _NUMBERS.size, 1)
            received = time.perf_counter()
            written_ns, header, body = _NUMBERS.unpack(told)
            with mmap.mmap(memory, body, mmap.MAP_SHARED | mmap.MAP_POPULATE) as mapped:
                assert mapped[body - 1] in (0, 1)
            looked_at = time.perf_counter()
            parts: Any = taken(Handed(memory, header, body))
            read_at = time.perf_counter()
            place.copy_(kept)
            copied = time.perf_counter()
            assert parts[Part.INPUT][-1] == 1
            taking = received - begun + read_at - looked_at
            found.setdefault(f"take_{name}_us", []).append(taking * 1e6)
            found.setdefault(f"map_{name}_us", []).append((looked_at - received) * 1e6)
            found.setdefault(f"copy_{name}_us", []).append((copied - read_at) * 1e6)
            found.setdefault(f"write_{name}_gb_per_s", []).append(size / written_ns)
        process.kill()
        process.join()
        ours.close()
        theirs.close()
    return found


class SlowText(Windows):
    """A text whose samples sleep before they come, as those of a storage that is far away."""

    def __init__(self, sleep_s: float) -> None:
        super().__init__(read_sources(1 << 20), MODEL["context"], "train")
        self._sleep_s = sleep_s

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(self._sleep_s)
        return super().__getitem__(index)


def slow_text(sleep_s: float) -> SlowText:
    """The factory."""
    return SlowText(sleep_s)


class Fed(InProcessFleet):
    """One worker, which reads by a loader if its job has one, and how long it waits for samples."""

    def __init__(self, sleep_s: float, workers: int) -> None:
        training = TrainingSpec(
            STEPS, BATCH, BATCH // 8, OptimizerSpec("torch.optim:AdamW", {"lr": 1e-3})
        )
        self.spec = JobSpec(
            model=ModelSpec("bamboo_agent.models.gpt:build", dict(MODEL)),
            data=DataSpec("loader:slow_text", {"sleep_s": sleep_s}, workers=workers),
            training=training,
            pipelines=PipelinesSpec(1, 1),
            worker=WorkerSpec("none"),
        )
        self.read_s = 0.0
        self.loader: Loader | None = None
        super().__init__(self.spec, (ALONE,))

    def _add(self, agent: AgentId) -> None:
        if self.spec.data.workers:
            limits = Limits(60.0, 60.0)
            self.loader = Loader(self.spec, to_json(self.spec), limits, server.fork)
        shared = replace(self._shared, agent=agent)
        self.workers[agent] = worker = Worker(
            setup=shared,
            spec=self.spec,
            transport=self.hub.join(agent),
            checkpoints=None,
            send=lambda message: self.messages.append((agent, message)),
            loader=self.loader,
        )
        data = worker.backend.state.setup.data
        data._reading = self._reading

    @contextmanager
    def _reading(self) -> Iterator[Callable[[int | None], None]]:
        begun = time.perf_counter()
        yield lambda sample: None
        self.read_s += time.perf_counter() - begun

    def turn(self, but: Collection[AgentId] = ()) -> bool:
        """It sleeps while the worker waits."""
        worker = self.workers[ALONE]
        did = super().turn(but)
        if not did and self.loader is not None and not worker.executor.is_over:
            select.select(worker.sources, [], [], 1.0)
            return True
        return did

    def run(self) -> list[float]:
        """Seconds of each step, and the share of all in which the worker waited for samples."""
        fence = Fence(0, 1, 1)
        decided = plans.decide(
            self.spec,
            fence=fence,
            layers=self.layers,
            reports=self.stop(fence),
            batch=BatchShape(8, 1, 8),
        )
        self.install(decided)
        self.run_to_end(fence)
        waited_s = self.workers[ALONE]._feeding.waited_s + self.read_s
        steps = [m.step_s for _, m in self.messages if isinstance(m, Progress)]
        self.close()
        return [waited_s / sum(steps), statistics.median(steps[2:])]


def measure_exposed(rounds: int) -> dict[str, list[float]]:
    """Shares of each round with a loader and without."""
    found: dict[str, list[float]] = {}
    _, compute_s = Fed(0.0, 0).run()
    for _ in range(rounds):
        for name, workers in (("exposed_wait_share", 1), ("exposed_wait_share_before", 0)):
            share, step_s = Fed(compute_s / 2 / BATCH, workers).run()
            found.setdefault(name, []).append(round(share, 4))
            found.setdefault(f"{name}_step_over_computing", []).append(round(step_s / compute_s, 3))
    return found


def figures(
    issue: dict[str, list[float]],
    handing: dict[str, list[float]],
    exposed: dict[str, list[float]],
) -> dict[str, float]:
    """Medians: of shares, of ratios within a round, and of what was handed over."""
    shares = {name: round(statistics.median(values), 4) for name, values in exposed.items()}
    found = {}
    for name in ("words", "slices"):
        for kind in ("thread", "process"):
            both = zip(issue[f"{kind}_{name}_us"], issue[f"alone_{name}_us"], strict=True)
            found[f"{kind}_over_alone_{name}"] = statistics.median(a / b for a, b in both)
        both = zip(issue[f"thread_{name}_read"], issue[f"process_{name}_read"], strict=True)
        found[f"thread_read_over_process_{name}"] = statistics.median(a / b for a, b in both)
    found |= {name: statistics.median(values) for name, values in handing.items()}
    return shares | {name: round(value, 2) for name, value in found.items()}


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--rounds", type=arguments.at_least(1), default=7)
    parser.add_argument("--print", action="store_true", help="write no result file")
    given = parser.parse_args()
    torch.set_num_threads(1)
    exposed = measure_exposed(given.rounds)
    handing = measure_handing(given.rounds)
    issue = measure_issue(given.rounds)
    found = figures(issue, handing, exposed)
    if given.print:
        print(json.dumps(found))
        return
    results_file.write("loader", samples=issue | exposed, figures=found, note=NOTE)


if __name__ == "__main__":
    main()
