"""A whole job on this machine without Kubernetes: real arbiter, supervisors, workers, over tcp.

async with LocalFleet(spec, folder) as fleet:
    await fleet.add({"a-0": "zone-a", "b-0": "zone-b"})
    await fleet.committed(3)
    fleet.kill("a-0")                 # SIGKILL the pod: supervisor and worker
    fleet.faults.cut("a-0", "b-0")    # see .injection.faults
    outcome = await fleet.over()
    fleet.history(), fleet.weights()
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, TypeVar

import torch

from bamboo_agent.local import processes
from bamboo_agent.local.certificates import Authority
from bamboo_agent.storage.checkpoint import Checkpoints
from bamboo_agent.supervisor.event_log import divergences
from bamboo_core.api.events import EventFact, EventReason
from bamboo_core.api.spec import JobSpec
from bamboo_core.arbiter_state.events import ArbiterStatus, Over, Timing
from bamboo_core.model.ids import AgentId
from bamboo_core.placement.plan import Plan
from bamboo_core.protocol.messages import Ready
from bamboo_sim.fleet.injection import state
from bamboo_sim.fleet.injection.effects import Effect
from bamboo_sim.fleet.injection.faults import Faults
from bamboo_sim.fleet.local_operator import LocalOperator
from bamboo_sim.fleet.logs import sample_log, state_log
from bamboo_sim.fleet.logs.instruction_log import InstructionLog
from bamboo_sim.fleet.switches import kill_switch
from bamboo_sim.programs.results_file import ROOT

WORKER = "bamboo_sim.fleet.processes.forked_worker"
SIGNALS = {
    signal.SIGKILL: Effect.KILLED,
    signal.SIGSTOP: Effect.STOPPED,
    signal.SIGTERM: Effect.NOTICED,
}
"""Signals that are faults, and their effects."""
Processes = Literal["both", "worker", "supervisor"]
_T = TypeVar("_T")


def gpus() -> list[str]:
    """Numbers of this machine's GPUs, as CUDA_VISIBLE_DEVICES names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    return (named.split(",") if named else [str(n) for n in range(count)])[:count]


class ForkServerProcess:
    """The forkserver as a child of this process."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until torch is loaded."""
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "bamboo_sim.fleet.processes.forkserver",
                str(self.socket),
                str(os.getpid()),
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"

    def stop(self) -> None:
        """Stop it; no worker can start afterwards."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


@dataclass
class Pod:
    """One agent's processes."""

    agent: AgentId
    zone: str
    process: asyncio.subprocess.Process
    pid_file: Path
    log: Path
    watcher: asyncio.Task[None] | None = None

    @property
    def worker_pid(self) -> int:
        """The worker's process id, once it has started."""
        return int(self.pid_file.read_text())

    def signal(self, number: signal.Signals, what: Processes = "both") -> int:
        """Send a signal, to both processes at almost the same time; how many live ones got it."""
        pids = {"worker": self.worker_pid, "supervisor": self.process.pid}
        chosen = list(pids.values()) if what == "both" else [pids[what]]
        alive = sum(map(_is_alive, chosen))
        for pid in chosen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return alive

    def terminate(self) -> None:
        """End the pod as Kubernetes does: SIGTERM, and SIGKILL after the grace period."""
        if self.process.returncode is None:
            self.process.terminate()
            asyncio.get_running_loop().call_later(processes.GRACE_S, self._end)

    def _end(self) -> None:
        if self.process.returncode is None:
            self.process.kill()


def _is_alive(pid: int) -> bool:
    """Whether a process is there and has not ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


class LocalFleet:
    """Agents by name. ``folder`` holds logs, event logs and the spec's checkpoints."""

    def __init__(
        self,
        spec: JobSpec,
        folder: Path,
        *,
        timing: Timing | None = None,
        forkserver: ForkServerProcess | None = None,
        sees_ends: bool = True,
        profiled: bool = True,
        hosts_ahead: bool = False,
        logs_events: bool = True,
        logs_states: bool = False,
        requires_effects: bool = True,
    ) -> None:
        """forkserver: one that several fleets share (None: start one); sees_ends: report the end of
        a process to the arbiter at once, as a kubelet does later; profiled, hosts_ahead: see
        :class:`LocalOperator`; logs_events: write event logs; logs_states: write hashes of the
        layers into ``folder/states`` (see :mod:`.logs.state_log`); requires_effects: AssertionError
        at the end if a fault that was ordered has had no effect."""
        authority = Authority()
        for name in ("pids", "logs", "kill-switches", "samples", "states"):
            (folder / name).mkdir(parents=True)
        self.faults = Faults(folder / "faults")
        self._requires_effects = requires_effects
        self.spec = spec
        self.folder = folder
        self.pods: dict[AgentId, Pod] = {}
        self.exits: dict[AgentId, int] = {}
        self._instructions: dict[str, InstructionLog] = {}
        self.operator = LocalOperator(
            spec,
            authority,
            dismiss=self._dismissed,
            timing=timing or Timing(start_grace_s=0.2, join_grace_s=0.2),
            profiled=profiled,
            counted=self.faults.counted,
            hosts_ahead=hosts_ahead,
        )
        self._logs_events, self._logs_states = logs_events, logs_states
        (folder / processes.TOKEN_FILE).write_text("token")
        (folder / processes.AUTHORITY_FILE).write_bytes(authority.bundle)
        self._sees_ends = sees_ends
        self._forkserver = forkserver or ForkServerProcess(folder / "forkserver")
        self._owns_forkserver = forkserver is None

    async def __aenter__(self) -> LocalFleet:
        if self._owns_forkserver:
            await asyncio.to_thread(self._forkserver.start)
        await self.operator.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.operator.stop()
        for pod in self.pods.values():
            if pod.process.returncode is None:
                pod.process.kill()
            await pod.process.wait()
            if pod.watcher is not None:
                await pod.watcher
        if self._owns_forkserver:
            self._forkserver.stop()
        self.faults.close()
        if error is None and self._requires_effects:
            idle = self.faults.counted.idle_orders()
            assert not idle, f"faults without effect: {'; '.join(idle)}"

    # ------------------------------------------------------------ agents

    async def add(self, agents: Mapping[str, str]) -> None:
        """Start agents: name -> zone."""
        self.operator.expect(map(AgentId, agents))
        for name, zone in agents.items():
            await self._start(AgentId(name), zone)

    async def _start(self, agent: AgentId, zone: str) -> None:
        log = self.folder / "logs" / agent
        kill_switch.create(self.folder / "kill-switches" / agent)
        with log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "bamboo_sim.fleet.processes.run_supervisor", WORKER),
                cwd=ROOT,
                env={**os.environ, **self._environment(agent, zone)},
                stderr=errors,
            )
        pod = self.pods[agent] = Pod(agent, zone, process, self.folder / "pids" / agent, log)
        pod.watcher = asyncio.create_task(self._watch(pod))

    def _environment(self, agent: AgentId, zone: str) -> dict[str, str]:
        address = self.faults.address_of(agent)
        return {
            **processes.environment(self.operator, self.folder, agent, zone, address),
            "BAMBOO_EVENT_LOG": str(self.folder / "events") if self._logs_events else "",
            "BAMBOO_FLEET_FORKSERVER": str(self._forkserver.socket),
            "BAMBOO_FLEET_PIDS": str(self.folder / "pids"),
            "BAMBOO_FLEET_KILL_SWITCHES": str(self.folder / "kill-switches"),
            "BAMBOO_FLEET_SAMPLES": str(self.folder / "samples"),
            state.FOLDER_VARIABLE: str(self.faults.folder),
            state_log.FOLDER_VARIABLE: str(self.folder / "states") if self._logs_states else "",
            "BAMBOO_THREADS": "1",
            **self._gpu(),
            "BAMBOO_GROUP_FLOOR_BYTES": "1",  # the tensors of these jobs are small
        }

    def _gpu(self) -> dict[str, str]:
        """For the next agent: one of its own, as far as there are so many."""
        found = gpus()
        return {"CUDA_VISIBLE_DEVICES": found[len(self.pods) % len(found)]} if found else {}

    async def _watch(self, pod: Pod) -> None:
        self.exits[pod.agent] = code = await pod.process.wait()
        if self._sees_ends:
            self.operator.lost(pod.agent, f"the pod ended with {code}")

    def _dismissed(self, agent: AgentId, reason: str) -> None:
        """The operator deletes the pod."""
        if (pod := self.pods.get(agent)) is not None:
            pod.terminate()

    # ------------------------------------------------------------ faults

    def kill(self, *agents: str) -> float:
        """SIGKILL whole pods; returns when (time.monotonic())."""
        at = time.monotonic()
        for name in agents:
            self._signal(name, signal.SIGKILL)
        return at

    def remove(self, *agents: str) -> None:
        """SIGKILL what is left of these pods. They may have ended, so this is no fault."""
        for name in agents:
            self.pods[AgentId(name)].signal(signal.SIGKILL)

    def kill_worker(self, agent: str) -> None:
        """SIGKILL only the worker."""
        self._signal(agent, signal.SIGKILL, "worker")

    def freeze(self, agent: str, what: Processes = "both") -> float:
        """Stop processes, as when a node hangs: sockets stay open. Returns when
        (time.monotonic())."""
        at = time.monotonic()
        self._signal(agent, signal.SIGSTOP, what)
        return at

    def thaw(self, agent: str) -> None:
        """Undo :meth:`freeze`."""
        self.pods[AgentId(agent)].signal(signal.SIGCONT)

    def hang(self, agent: str) -> None:
        """Let the worker's next instruction never end (:meth:`hung_at` tells when it began)."""
        self.arm_kill_switch(agent, kill_switch.HANG, kill_switch.ANY)

    def terminate(self, agent: str) -> None:
        """SIGTERM, as before a preemption."""
        self._signal(agent, signal.SIGTERM, "supervisor")

    def _signal(self, agent: str, number: signal.Signals, what: Processes = "both") -> None:
        self.faults.counted.ordered(f"{number.name} for {agent}", [agent], SIGNALS[number])
        for _ in range(self.pods[AgentId(agent)].signal(number, what)):
            self.faults.counted.count(agent, SIGNALS[number])

    def arm_kill_switch(
        self, agent: str, moment: str, instruction: str, *, must_act: bool = True
    ) -> None:
        """Let the pod kill itself at an instruction (see :mod:`.switches.kill_switch`).

        must_act: the fleet fails at its end if the agent has not got there. False where the caller
        asserts what must have happened.
        """
        if must_act:
            effect = kill_switch.effect_of(moment)
            self.faults.counted.ordered(f"{moment} {instruction} for {agent}", [agent], effect)
        kill_switch.arm(self.folder / "kill-switches" / agent, moment, instruction)

    def died_at(self, agent: str) -> float:
        """time.monotonic() of a death by the kill switch; 0 if it was not triggered."""
        return kill_switch.triggered_at(self.folder / "kill-switches" / agent)

    def hung_at(self, agent: str) -> float:
        """time.monotonic() when an instruction began to hang; 0: none does."""
        return kill_switch.triggered_at(self.folder / "kill-switches" / agent)

    # ------------------------------------------------------------ waiting

    async def until(
        self, condition: Callable[[], bool], what: str, *, deadline_s: float = 60.0
    ) -> None:
        """Wait for the condition. AssertionError with :meth:`record` at the deadline."""
        end = time.monotonic() + deadline_s
        while not condition():
            if time.monotonic() > end:
                raise AssertionError(f"{what}: not within {deadline_s:g} s\n{self.record()}")
            await asyncio.sleep(0.005)

    async def planned(
        self, condition: Callable[[Plan], bool], what: str, *, deadline_s: float = 60.0
    ) -> None:
        """Wait until there is a plan and the condition holds for the newest one."""

        def holds() -> bool:
            plan = self.status().plan
            return plan is not None and condition(plan)

        await self.until(holds, what, deadline_s=deadline_s)

    async def committed(self, step: int, *, deadline_s: float = 60.0) -> None:
        """Wait until the commit of ``step`` is reported or the job is over."""

        def is_there() -> bool:
            return self.operator.over is not None or self.committed_step >= step

        await self.until(is_there, f"commit of step {step}", deadline_s=deadline_s)

    async def suspended(self, *, deadline_s: float = 60.0) -> Over:
        """Suspend the job: it ends at the next step with a checkpoint."""
        self.operator.change_goal(suspended=True)
        return await self.over(deadline_s=deadline_s)

    async def over(self, *, deadline_s: float = 60.0) -> Over:
        """Wait for the end of the job and of all agents."""
        await self.until(
            lambda: self.operator.over is not None, "end of job", deadline_s=deadline_s
        )
        await self.until(lambda: len(self.exits) == len(self.pods), "exit of all agents")
        assert self.operator.over is not None
        return self.operator.over

    # ------------------------------------------------------------ state

    def status(self) -> ArbiterStatus:
        """The arbiter's status."""
        assert self.operator.arbiter is not None
        return self.operator.arbiter.status()

    def plan(self) -> Plan:
        """The newest plan."""
        plan = self.status().plan
        assert plan is not None, self.record()
        return plan

    def messages(self, kind: type[_T]) -> list[_T]:
        """All messages of one type that agents sent."""
        return [said.message for said in self.operator.messages if isinstance(said.message, kind)]

    def recorded(self, reason: EventReason, *, after: float = 0.0) -> bool:
        """Whether the arbiter has recorded this event after a time (time.monotonic())."""
        return any(at > after and r.reason is reason for at, r in self.operator.records)

    def redone_tasks(self, after: float = 0.0) -> int:
        """Tasks that plans have repeated after a time (time.monotonic())."""
        facts = [r.facts for at, r in self.operator.records if at > after]
        return sum(int(f.get(EventFact.REDONE_TASKS, 0)) for f in facts)

    def instructions(self, agent: str) -> InstructionLog:
        """The worker's instructions so far, from its event log."""
        path = self.folder / "events" / f"{agent}.jsonl"
        return self._instructions.setdefault(agent, InstructionLog(path)).read()

    @property
    def committed_step(self) -> int:
        """The newest step whose commit was reported; -1: none."""
        arbiter = self.operator.arbiter
        return -1 if arbiter is None else arbiter.status().progress.committed

    # ------------------------------------------------------------ results

    def history(self) -> list[str]:
        """Commit records of all steps up to the last checkpoint, as text.

        While there is no operator, agents train on, and they tell the next one of the newest step
        only. The records of such steps are in the logs of the agents.
        """
        found: dict[int, str] = {}
        for path in sorted((self.folder / "events").glob("*.jsonl")):
            found |= self.instructions(path.stem).commits
        found |= {step: repr(commit) for step, commit in self.operator.commits.items()}
        return [found[step] for step in range(self.steps)]

    @property
    def steps(self) -> int:
        """Number of steps in the newest checkpoint."""
        checkpoint = self.status().checkpoint
        assert checkpoint is not None
        return checkpoint.step

    def weights(self) -> dict[str, torch.Tensor]:
        """The last checkpoint: ``layer/name`` -> tensor, with the optimizer state."""
        assert self.spec.checkpoint is not None
        checkpoints = Checkpoints(self.spec.checkpoint.uri, self.operator.job.uid)
        scan = checkpoints.scan()
        assert not scan.bad
        newest = max(scan.good, key=lambda m: (m.step, m.attempt))
        assert newest.step == self.steps
        return {
            f"{layer}/{name}": tensor
            for layer in range(self._layers())
            for name, tensor in checkpoints.read_layer(newest, layer).tensors.items()
        }

    def samples(self) -> sample_log.SampleLog:
        """The samples of all steps up to the last checkpoint."""
        return sample_log.read(self.folder / "samples", self.steps)

    def _layers(self) -> int:
        return self.messages(Ready)[0].layers

    def divergences(self) -> list[str]:
        """Where supervisors differed from the core's state machine."""
        found = sorted((self.folder / "events" / "supervisors").glob("*.jsonl"))
        return [line for path in found for line in divergences(path)]

    def record(self) -> str:
        """The arbiter's events and status, and the ends of the agents' logs."""
        lines = [f"{at:.3f} {r.reason} {r.message}" for at, r in self.operator.records]
        if self.operator.arbiter is not None:
            status = self.operator.arbiter.status()
            lines.append(f"{status.phase}: {status.detail}")
            for name in ("members", "connected", "ready", "standby", "leaving"):
                lines.append(f"{name}: {' '.join(getattr(status, name))}")
        for pod in self.pods.values():
            text = pod.log.read_text(errors="replace")
            lines.append(f"--- {pod.agent} (exit {pod.process.returncode})\n{text[-1500:]}")
        return "\n".join(lines)
