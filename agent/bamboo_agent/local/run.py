"""One job on this machine from its start to its end, with losses on the way."""

from __future__ import annotations

import asyncio
import random
import secrets
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from bamboo_agent.local.certificates import Authority
from bamboo_agent.local.operator import JOB_UID, LocalOperator
from bamboo_agent.local.processes import AUTHORITY_FILE, TOKEN_FILE, Agents
from bamboo_agent.local.reader import Announcement
from bamboo_core.api import local_run
from bamboo_core.api.events import EventReason, Severity
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.spec import JobSpec, to_json
from bamboo_core.arbiter_state.events import ArbiterJob, ArbiterPhase, Event, Over, Record, Timing
from bamboo_core.model.counts import counted
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.exit_codes import ExitCode
from bamboo_core.protocol.messages import (
    Activity,
    AgentMessage,
    CommitRecord,
    Heartbeat,
    Progress,
    Ready,
)

Tell = Callable[[local_run.Told], None]

STOPPED = "Failed"
"""Reason of a run that ends without its operator, so without a word on what it leaves."""
ZONES = ("zone-a", "zone-b", "zone-c")
"""Of agents, if the job names none: as many as any grid needs."""
_STILL_S, _USUAL = 10.0, 5.0  # a step is late after so long, and so many times the longest one
_MOST_NAMED = 2  # agents that hold it up
_TIMING = Timing(start_grace_s=600.0, join_grace_s=0.5)


@dataclass(frozen=True)
class Options:
    """variables: the job's environment; gpus: of this machine; kills: agents to take away."""

    folder: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    gpus: int = 0
    kills: int = 0


class _Operator(LocalOperator):
    """Tells events and steps, and admits only who has the token. ``news`` is set with each event;
    ``refusal``: why an agent was not admitted; ``failures``: how the workers of agents have
    failed."""

    def __init__(
        self, job: ArbiterJob, authority: Authority, token: str, tell: Tell, **more: Any
    ) -> None:
        super().__init__(job, authority, **more)
        self._token, self._tell = token, tell
        self.committed = -1
        self.refusal = ""
        self.failures: dict[AgentId, str] = {}
        self._stalled: dict[AgentId, str] = {}  # how the agent stood still
        self._heard_of: frozenset[AgentId] = frozenset()
        self._ready: frozenset[AgentId] = frozenset()
        self._activities: Mapping[AgentId, Activity] = {}  # that have lasted for a while
        self._committed_at, self._longest_s = 0.0, 0.0  # of a step, in seconds
        self._attempt = 0  # in which the newest step was committed
        self._again = -1  # newest step that a later attempt has committed again; -1: none
        self.news = asyncio.Event()

    def handle(self, event: Event) -> None:
        """Pass an event to the arbiter and perform the effects."""
        super().handle(event)
        self.news.set()

    async def _admit(self, agent: AgentId, context: Any) -> None:
        given = dict(context.invocation_metadata()).get("authorization", "")
        if not secrets.compare_digest(str(given), f"Bearer {self._token}"):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "no agent of this run")

    def _record(self, record: Record) -> None:
        if record.reason is EventReason.AGENT_REFUSED:  # here, others are refused as well
            self.refusal = self.refusal or record.message
        if record.reason is EventReason.STALLED:
            self._stalled |= dict.fromkeys(record.agents, record.message)
        if record.reason is EventReason.WORKER_FAILED:
            for agent in record.agents:
                why = record.message.removeprefix(f"{agent}: ")
                if agent in self._stalled and signal.SIGKILL.name in why:
                    why = f"{why}, since it stood still: {self._stalled[agent]}"
                self.failures[agent] = why
        self._tell(local_run.Happened(record.reason, record.message, record.severity))

    @property
    def is_failing(self) -> bool:
        """Whether the job ends by an error of the user's code."""
        return self.arbiter is not None and bool(self.arbiter.durable.failing)

    @property
    def doing(self) -> str:
        """Say what goes on before the first step, or instead of the next one; empty: nothing.
        Also from another thread."""
        if self.goal.suspended and not self._is_done:
            ending = (
                "ending with a checkpoint; another signal (Ctrl-C) ends it at once, without one"
            )
            return "; ".join([ending, *self._does])
        if self.committed < 0:
            return self._starting
        still_s = time.monotonic() - self._committed_at
        is_late = still_s >= max(_STILL_S, _USUAL * self._longest_s)
        if self._again >= 0 and not is_late:
            return f"step {self._again} of the {self.committed + 1} before is committed again"
        if not is_late or self._is_done:
            return ""
        if not self.goal.expected <= self._ready:  # some replace those that were lost
            return f"training stands still: {self._starting}"
        step = self._again if self._again >= 0 else self.committed
        text = f"step {step + 1} is late"  # as errors count: from 0
        return "; ".join([text, *self._does])

    @property
    def _does(self) -> list[str]:
        """Say what agents do that wait for no other one, the longest first."""
        known = sorted((-x.age_s, a, x) for a, x in self._activities.items() if x.instruction)
        does = [f"{a}: {x.instruction} for {x.age_s:.0f} s" for _, a, x in known if not x.peer]
        return does[:_MOST_NAMED]

    @property
    def _is_done(self) -> bool:
        return self.committed + 1 >= self.job.spec.training.steps

    @property
    def _starting(self) -> str:
        expected = self.goal.expected
        ready = self._ready & expected
        if ready == expected:
            return f"{counted(len(ready), 'agent')} ready; planning, and computing the first step"
        building = ", ".join(sorted((self._heard_of & expected) - ready))
        silent = ", ".join(sorted(expected - self._heard_of))
        parts = [
            f"{len(ready)} of {counted(len(expected), 'agent')} ready",
            f"building and measuring: {building}" if building else "",
            f"starting: {silent}" if silent else "",
        ]
        return "; ".join(filter(None, parts))

    def _heard(self, agent: AgentId, message: AgentMessage) -> AgentMessage:
        self._heard_of |= {agent}
        if isinstance(message, Ready):
            self._ready |= {agent}
        if isinstance(message, Heartbeat):
            self._note(agent, message.activity)
        if isinstance(message, Progress):
            self._progress(message)
        return message

    def _progress(self, message: Progress) -> None:
        """A step is told once, though several agents tell it, and a restore computes it again."""
        now, step, attempt = time.monotonic(), message.commit.step, message.fence.attempt
        if step > self.committed:
            if self.committed >= 0:
                self._longest_s = max(self._longest_s, now - self._committed_at)
            self.committed, self._attempt, self._again = step, attempt, -1
            self._committed_at = now
            self._tell(self._told(message.commit))
        elif attempt > self._attempt:
            self._again, self._committed_at = max(self._again, step), now

    def _note(self, agent: AgentId, activity: Activity | None) -> None:
        others = {a: x for a, x in self._activities.items() if a != agent}
        self._activities = others if activity is None else {**others, agent: activity}

    def _told(self, commit: CommitRecord) -> local_run.Told:
        """A step, or the validation after the last one, which is a commit of its own."""
        assert self.arbiter is not None
        if commit.step >= self.job.spec.training.steps:
            text = f"the loss after the last step is {commit.validation_loss}"
            for name, value in sorted(commit.validation_metrics.items()):
                text += f", {name} is {value}"
            return local_run.Happened(local_run.VALIDATED, text)
        agents = len(self.arbiter.status().members)
        return local_run.Step(
            commit.step,
            commit.loss,
            commit.grad_norm,
            agents,
            commit.validation_loss,
            commit.metrics,
            commit.validation_metrics,
        )


class LocalRun:
    """A run; :meth:`run` is called once."""

    def __init__(self, name: str, spec: JobSpec, options: Options, tell: Tell) -> None:
        """name: NAMESPACE/NAME. tell: called with what happens."""
        self._spec, self._options, self._tell = spec, options, tell
        authority, token = Authority(), secrets.token_hex(16)
        folder = options.folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / AUTHORITY_FILE).write_bytes(authority.bundle)
        (folder / TOKEN_FILE).touch(mode=0o600)
        (folder / TOKEN_FILE).write_text(token)
        job = ArbiterJob(name, JOB_UID, spec, to_json(spec), _TIMING)
        self._operator = _Operator(job, authority, token, tell, dismiss=self._dismiss)
        self._agents = Agents(
            folder, variables=options.variables, gpus=options.gpus, on_end=self._ended
        )
        self._zones = spec.placement.named_zones or ZONES
        self._chosen = random.Random(spec.seed)
        self._killed: set[AgentId] = set()
        self._failures = 0
        self._seen: set[str] = set()  # texts of failures
        self._wrong = ""
        self._to_replace: list[AgentId] = []

    async def run(self) -> Over:
        """Train to the end. An outcome Failed says why."""
        await self._operator.start()
        try:
            grid = self._spec.pipelines
            await self._start(
                {self._name(i): self._zone(i) for i in range(grid.count * grid.stages)}
            )
            with Announcement(self._tell, lambda: self._operator.doing):
                while self._goes_on:
                    await self._turn()
            if self._operator.over is None:
                return Over(Outcome.FAILED, STOPPED, self._why)
            with Announcement(self._tell, lambda: self._last):
                await self._agents.ended()
            return self._operator.over
        finally:
            await self._operator.stop()
            await self._agents.end()

    @property
    def _last(self) -> str:
        """Say what agents do once training is over."""
        hooks = ", ".join(hook.factory for hook in self._spec.hooks)
        return f"agents tell the last steps to {hooks}, and end" if hooks else "agents end"

    @property
    def _goes_on(self) -> bool:
        return self._operator.over is None and not self._why

    async def _turn(self) -> None:
        """Do what is due, and wait for the next event."""
        await self._replace()
        self._kill_if_due()
        self._operator.news.clear()
        await self._operator.news.wait()

    @property
    def _why(self) -> str:
        """Why the run cannot go on; empty: it can."""
        return self._wrong or self._operator.refusal

    @property
    def committed(self) -> int:
        """The newest step that is committed; -1: none."""
        return self._operator.committed

    @property
    def is_suspended(self) -> bool:
        """Whether :meth:`suspend` has been called."""
        return self._operator.goal.suspended

    def suspend(self) -> None:
        """End with a checkpoint after the step that runs."""
        self._operator.change_goal(suspended=True)

    # ------------------------------------------------------------ agents

    @staticmethod
    def _name(number: int) -> AgentId:
        return AgentId(f"agent-{number}")

    def _zone(self, number: int) -> str:
        return self._zones[number % len(self._zones)]

    async def _start(self, agents: Mapping[AgentId, str]) -> None:
        self._operator.expect(agents)
        for agent, zone in agents.items():
            await self._agents.start(self._operator, agent, zone)

    async def _replace(self) -> None:
        """Start an agent, in the same zone, for each that was lost."""
        while self._to_replace and self._operator.over is None:
            lost = self._to_replace.pop()
            zone = self._agents.started[lost].zone
            await self._start({self._name(len(self._agents.started)): zone})

    def _dismiss(self, agent: AgentId, reason: str) -> None:
        if agent in self._agents.started:
            self._agents.started[agent].terminate()

    def _ended(self, agent: AgentId, code: int) -> None:
        self._operator.lost(agent, f"its process ended with {code}")
        if code in (ExitCode.RELEASED, ExitCode.DRAINED) or self._operator.over is not None:
            return
        if agent not in self._killed:
            self._failures += 1
            log = self._agents.started[agent].log
            failed = self._operator.failures.get(agent, "")
            text = f"agent {agent} ended with exit code {code}; its log is {log}"
            if failed:
                text = f"{failed}: {text}"
            is_new = self._operator.committed < 0  # else the arbiter knows what agents have met
            is_known = bool(failed) and failed in self._seen and is_new  # others would fail alike
            self._seen.add(failed)
            is_over = self._failures > self._spec.run_policy.backoff_limit
            if self._operator.is_failing:
                return  # it ends the run itself, with a last checkpoint
            if code == ExitCode.USER or is_known or is_over:
                self._wrong = self._wrong or text
                return
            self._tell(local_run.Happened("AgentEnded", text, Severity.WARNING))
        self._to_replace.append(agent)

    # ------------------------------------------------------------ losses

    def _kill_if_due(self) -> None:
        """Take an agent of the plan away: they are spread evenly over the steps, and training has
        gone on after the last one."""
        number = len(self._killed) + 1
        if number > self._options.kills:
            return
        arbiter = self._operator.arbiter
        assert arbiter is not None
        status = arbiter.status()
        due = number * self._spec.training.steps // (self._options.kills + 1)
        if status.phase is not ArbiterPhase.RUNNING or self._operator.committed + 1 < due:
            return
        if self._killed & set(status.members):
            return
        agent = self._chosen.choice(sorted(status.members))
        self._killed.add(agent)
        self._tell(local_run.Killed(agent, number, self._options.kills))
        self._agents.started[agent].kill()
