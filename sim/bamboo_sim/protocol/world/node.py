"""One agent of the explored world: the production supervisor and executor, and its session."""

from __future__ import annotations

from collections import Counter
from typing import Any

from bamboo_core.model.ids import AgentId
from bamboo_core.model.items import Item
from bamboo_core.model.program import Op
from bamboo_core.protocol.messages import ActivityKind, Hello
from bamboo_core.protocol.supervisor import Effect, Event, Progressed, Supervisor
from bamboo_sim.protocol.parts.job import Job
from bamboo_sim.protocol.world.folder import Folder
from bamboo_sim.protocol.world.worker import Worker

_OF_STORAGE = frozenset({Op.LOAD, Op.SAVE, Op.SEAL})
_MEASURED_S, _UNKNOWN_S = 30.0, 300.0  # limits of instructions, as a worker writes them

_MUTABLE = ("_clock", "_said", "_watch", "_transfers")


class Node:
    """The state of a supervisor's shell; Supervisor and Executor make the decisions.

    operator: the one of the present or the last session; stream: that session's number; watched:
    peers on its liveness sockets.
    """

    def __init__(self, name: AgentId, job: Job, sealed: Folder) -> None:
        self.name = name
        self.supervisor = Supervisor(_identity(name, job.zone(name)))
        self.worker = Worker(name, job, sealed)
        self.operator = AgentId("")
        self.stream = 0
        self.watched: tuple[AgentId, ...] = ()
        self.unheard: list[Any] | None = None  # events of a supervisor that stands still
        self.backlog: list[Any] | None = None  # messages to a worker that stands still
        self.traffic = 0
        self.received = Counter[AgentId]()  # payloads by sender

    def copy(self, sealed: Folder) -> Node:
        """An independent copy that sees those checkpoints."""
        new = Node.__new__(Node)
        new.__dict__.update(self.__dict__)
        new.supervisor = Supervisor.__new__(Supervisor)
        state = new.supervisor.__dict__
        state.update(self.supervisor.__dict__)
        for name in _MUTABLE:
            state[name] = state[name].copy()
        new.worker = self.worker.copy(sealed)
        new.received = self.received.copy()
        new.unheard = None if self.unheard is None else self.unheard.copy()
        new.backlog = None if self.backlog is None else self.backlog.copy()
        return new

    @property
    def executor(self) -> Any:
        """The worker's control logic."""
        return self.worker.executor

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Let the supervisor decide about an event."""
        return self.supervisor.handle(event, now)

    def reach_worker(self, message: Any, source: AgentId | None = None) -> None:
        """A message comes to the worker: of the operator, or with a peer's payload."""
        if source is not None:
            self.received[source] += 1
        if self.backlog is not None:
            self.backlog.append(message)
        elif type(message) is tuple:
            self.traffic += 1
            self.worker.arrive(*message)
        else:
            self.worker.hear(message)

    def doing(self) -> Progressed:
        """The progress that the worker has written into the memory that it shares with the
        supervisor."""
        worker, executor = self.worker, self.worker.executor
        task, kind, peer = executor.running or executor.current, ActivityKind.WAITING, None
        if executor.running is not None:
            is_stored = executor.running.op in _OF_STORAGE
            kind = ActivityKind.LOADING if is_stored else ActivityKind.RUNNING
        elif (record := executor.awaited_record) is not None and not worker.writes:
            task, peer = record, record.peer
        elif executor.waits_for_files or (worker.farewell is not None and worker.writes):
            kind = ActivityKind.LOADING
        elif executor.is_over:
            kind = ActivityKind.IDLE
        elif task is not None:
            voters = (a for a in task.agents if not executor.has(Item.vote(task.step, a)))
            peer = task.peer or next(voters, None)
        limit_s = 0.0
        if worker.can_run:
            limit_s = _UNKNOWN_S if kind is ActivityKind.LOADING else _MEASURED_S
        return Progressed(
            executor.completed,
            executor.step,
            kind=kind,
            limit_s=limit_s,
            instruction="" if task is None else str(task),
            peer=peer,
            traffic=self.traffic,
            received=0 if peer is None else self.received[peer],
        )


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
