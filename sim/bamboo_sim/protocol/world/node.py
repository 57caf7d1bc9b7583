"""One agent of the explored world: the production supervisor and executor, and its session."""

from __future__ import annotations

from typing import Any

from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import Hello
from bamboo_core.protocol.supervisor import Effect, Event, Supervisor
from bamboo_sim.protocol.world.job import Job
from bamboo_sim.protocol.world.worker import Sealings, Worker

_MUTABLE = ("_heard_at", "_suspected", "_unsent")


class Node:
    """The state of a supervisor's shell; Supervisor and Executor make the decisions.

    operator: the one of the present or the last session; watched: peers on its liveness sockets.
    """

    def __init__(self, name: AgentId, job: Job, sealed: Sealings) -> None:
        self.name = name
        self.supervisor = Supervisor(_identity(name, job.zone(name)))
        self.worker = Worker(name, job.num_layers, sealed, salted=job.salted, costs=job.costs)
        self.operator = AgentId("")
        self.watched: tuple[AgentId, ...] = ()

    def copy(self, sealed: Sealings) -> Node:
        """An independent copy that sees those checkpoints."""
        new = Node.__new__(Node)
        new.__dict__.update(self.__dict__)
        new.supervisor = Supervisor.__new__(Supervisor)
        state = new.supervisor.__dict__
        state.update(self.supervisor.__dict__)
        for name in _MUTABLE:
            state[name] = state[name].copy()
        new.worker = self.worker.copy(sealed)
        return new

    @property
    def executor(self) -> Any:
        """The worker's control logic."""
        return self.worker.executor

    def handle(self, event: Event, now: float) -> list[Effect]:
        """What the supervisor does about it."""
        return self.supervisor.handle(event, now)


def _identity(name: AgentId, zone: str) -> Hello:
    address = f"{name}:1"
    return Hello(
        name,
        pod_uid=name,
        node=name,
        zone=zone,
        machine=name,
        data_address=address,
        liveness_address=address,
    )
