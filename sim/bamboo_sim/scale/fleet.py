"""Processes full of fake agents, and how the measurement talks to them."""

from __future__ import annotations

import asyncio
import multiprocessing
from multiprocessing.connection import Connection
from typing import Any

from bamboo_sim.scale.agents import Fleet, Operator
from bamboo_sim.scale.kubelets import RunningPod, of_jobs


def serve(pipe: Connection, step_s: float) -> None:
    """A process of fake agents: performs what the pipe asks for, until it closes."""
    asyncio.run(_serve(pipe, step_s))


async def _serve(pipe: Connection, step_s: float) -> None:
    fleet, asked = Fleet(step_s), asyncio.Event()
    commits = asyncio.create_task(fleet.commit_for_ever())
    asyncio.get_running_loop().add_reader(pipe.fileno(), asked.set)
    while not commits.done():
        await asked.wait()
        asked.clear()
        while pipe.poll():
            try:
                name, *arguments = pipe.recv()
            except EOFError:
                return
            pipe.send(await _perform(fleet, name, arguments))
    commits.result()


async def _perform(fleet: Fleet, name: str, arguments: list[Any]) -> Any:
    match name:
        case "add":
            fleet.add(*arguments)
            return len(fleet.jobs)
        case "lose":
            return await fleet.lose(*arguments)
        case _:
            return fleet.state()


class Processes:
    """The agents of each job live in one of the processes."""

    def __init__(self, count: int, step_s: float) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        self._homes: dict[str, int] = {}
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(theirs, step_s), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    @property
    def pids(self) -> list[int]:
        """The IDs of all processes."""
        return [process.pid or 0 for process in self._processes]

    async def add(self, pods: list[RunningPod], operator: Operator) -> None:
        """Agents in these pods connect."""
        shares: list[list[RunningPod]] = [[] for _ in self._pipes]
        for job, members in sorted(of_jobs(pods).items()):
            home = self._homes.setdefault(job, len(self._homes) % len(self._pipes))
            shares[home] += members
        for index, share in enumerate(shares):
            if share:
                await self._ask(index, "add", share, operator)

    async def lose(self, job: str, index: int) -> float:
        """See Fleet."""
        found: float = await self._ask(self._homes[job], "lose", job, index)
        return found

    async def state(self) -> dict[str, Any]:
        """The same as Fleet.state, over all processes."""
        states = [await self._ask(index, "state") for index in range(len(self._pipes))]
        joined: dict[str, Any] = {}
        for key in states[0]:
            values = [state[key] for state in states]
            if isinstance(values[0], list):
                joined[key] = sorted(x for value in values for x in value)
            elif isinstance(values[0], str):
                joined[key] = next((value for value in values if value), "")
            else:
                joined[key] = max(values) if key == "heartbeat_s" else sum(values)
        return joined

    async def _ask(self, index: int, *words: Any) -> Any:
        pipe = self._pipes[index]
        pipe.send(words)
        return await asyncio.to_thread(pipe.recv)

    def close(self) -> None:
        """End all processes."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.kill()
            process.join()
