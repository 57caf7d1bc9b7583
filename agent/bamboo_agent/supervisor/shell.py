"""The supervisor's shell: feeds events to the state machine and performs its effects.

It is a small process without torch: a training process may stall for seconds, and when it dies the
kernel needs 0.1 s per GiB before its sockets close.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path

from bamboo_agent.addresses import join_address
from bamboo_agent.hooks.hooks import Hooks
from bamboo_agent.ipc import activity
from bamboo_agent.notices import watch
from bamboo_agent.notices.sources import News
from bamboo_agent.supervisor.config import Config
from bamboo_agent.supervisor.event_log import EventLog
from bamboo_agent.supervisor.health import HealthServer, Metrics
from bamboo_agent.supervisor.liveness import Liveness
from bamboo_agent.supervisor.progress_log import ProgressLog
from bamboo_agent.supervisor.session import Session
from bamboo_agent.supervisor.worker_process import WorkerProcess
from bamboo_core.api import texts
from bamboo_core.api.spec import NoticeSource, from_json
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol import supervisor as core
from bamboo_core.protocol.exit_codes import ExitCode
from bamboo_core.protocol.messages import (
    AgentMessage,
    Continuation,
    Directive,
    Hello,
    Peer,
    Progress,
    Ready,
    Stop,
    Welcome,
)

log = logging.getLogger(__name__)

TICK_S = 0.05
BEAT_S = 0.2
FLUSH_S = 0.5
HOOKS_S = 30.0
"""For hooks to be told the last steps of a job. If an agent is lost, another one tells them."""
WORKER_MODULE = "bamboo_agent.worker.main"


@dataclass
class _Sockets:
    """Bound before the Hello, which carries their addresses."""

    data: socket.socket
    liveness: socket.socket

    @classmethod
    def bind(cls, host: str) -> _Sockets:
        return cls(_listening(host), _listening(host))


class SupervisorShell:
    """One agent's supervisor process."""

    def __init__(self, config: Config) -> None:
        """Bind the sockets. OSError if the pod's address is not local."""
        self._config = config
        self._sockets = _Sockets.bind(config.pod_ip)
        self.supervisor = core.Supervisor(_identity(config, self._sockets))
        self._agent = self.supervisor.identity.agent
        self._metrics = Metrics(job=config.job, agent=config.agent)
        self._session = Session(config, self._handle)
        self._liveness = Liveness(
            self._agent,
            on_heard=lambda agent: self._handle(core.PeerHeard(agent)),
            on_closed=lambda agent: self._handle(core.PeerClosed(agent)),
        )
        self._worker = WorkerProcess(
            on_message=self._on_worker_message, on_exit=self._on_worker_exit
        )
        self._event_log = (
            None if config.event_log is None else EventLog(config.event_log, self.supervisor)
        )
        self._exit_decision: asyncio.Future[core.Exit] = asyncio.get_running_loop().create_future()
        self._hooks: Hooks | None = None
        self._hooks_task: asyncio.Task[None] | None = None
        self._progress: core.Progressed | None = None
        self._progress_log = ProgressLog(asyncio.get_running_loop().time)
        self._names: dict[int, AgentId] = {}  # of the plan's agents, by hash
        self._early_exit: core.WorkerExited | None = None
        self._is_worker_expected = False
        self._is_ready = False

    async def run(self) -> int:
        """Serve until the state machine exits. Returns the exit code."""
        health = HealthServer(self._metrics, is_ready=lambda: self._is_ready)
        self._catch_signals()
        await health.start(self._config.pod_ip, self._config.health_port)
        await self._worker.start(
            module=WORKER_MODULE, agent=self._agent, data_socket=self._sockets.data
        )
        await self._liveness.start(self._sockets.liveness)
        tasks = [asyncio.create_task(work) for work in self._services()]
        for task in tasks:
            task.add_done_callback(self._on_task_done)
        decision = await self._exit_decision
        await self._finish(decision, tasks)
        await health.close()
        return decision.code

    async def _finish(self, decision: core.Exit, tasks: list[asyncio.Task[None]]) -> None:
        log.info("exit %d: %s", decision.code, decision.reason)
        write_termination(self._config.termination_file, decision.reason)
        await self._session.flush(FLUSH_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._liveness.close()
        await self._worker.close()
        untold = await self._finish_hooks(HOOKS_S if decision.code == ExitCode.RELEASED else 0.0)
        if untold:
            text = f"{decision.reason}{texts.UNTOLD}{untold}"
            write_termination(self._config.termination_file, text)
        if self._event_log is not None:
            self._event_log.close()

    async def _finish_hooks(self, wait_s: float) -> str:
        if self._hooks is None or self._hooks_task is None:
            return ""
        self._hooks_task.cancel()
        return await self._hooks.close(wait_s)

    # ------------------------------------------------------------ events

    def _handle(self, event: core.Event) -> None:
        now = asyncio.get_running_loop().time()
        effects = self.supervisor.handle(event, now)
        if self._event_log is not None:
            self._event_log.record(event, now, effects)
        for effect in effects:
            self._perform(effect)

    def _on_worker_message(self, message: AgentMessage) -> None:
        if isinstance(message, Ready):
            self._is_ready = True
            log.info("ready: %d layers, %d samples", message.layers, message.training_samples)
        if isinstance(message, Progress) and self._hooks is not None:
            message = self._hooks.committed(message)
        self._handle(core.FromWorker(message))

    def _on_worker_exit(self, code: int, text: str) -> None:
        """Held back until the state machine has asked for the worker."""
        self._is_ready = False
        self._poll_progress()  # what it did last
        place = activity.read_place(self._worker.shared_progress)
        exited = core.WorkerExited(code, text, place)
        if self._is_worker_expected:
            self._handle(exited)
        else:
            self._early_exit = exited

    def _catch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            event = core.Departing(self._config.grace_s, number.name)
            loop.add_signal_handler(number, self._handle, event)

    def _services(self) -> list[Coroutine[None, None, None]]:
        config = self._config
        notices = watch.run(config.notices, self._on_notice, address=config.metadata_address)
        return [self._session.run(), self._tick(), notices]

    def _on_notice(self, source: NoticeSource, news: News) -> None:
        self._handle(
            core.Departing(
                news.lead_s,
                news.reason,
                is_signal=False,
                source=source.value,
                is_hint=news.is_hint,
            )
        )

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the supervisor has failed", exc_info=error)
            self._exit(core.Exit(int(ExitCode.FAILED), f"supervisor: {error!r}"))

    async def _tick(self) -> None:
        beat_at = 0.0
        while True:
            self._poll_progress()
            self._handle(core.Tick())
            self._update_metrics()
            if (now := asyncio.get_running_loop().time()) >= beat_at:
                beat_at = now + BEAT_S
                self._liveness.beat()
            await asyncio.sleep(TICK_S)

    def _poll_progress(self) -> None:
        progress = activity.read(self._worker.shared_progress, self._names)
        if progress != self._progress:
            self._progress = progress
            self._handle(progress)

    def _update_metrics(self) -> None:
        metrics = self._metrics
        metrics.connected.set(self._session.is_open)
        metrics.worker_ready.set(self._is_ready)
        metrics.peers.set(len(self._liveness.connected))
        metrics.epoch.set(self.supervisor.fence.epoch)
        metrics.step.set(self.supervisor.step)
        metrics.instructions.set(self.supervisor.word)
        metrics.refused.set(self._worker.shared_progress.refused + self._liveness.refused)

    # ------------------------------------------------------------ effects

    def _perform(self, effect: core.Effect) -> None:
        match effect:
            case core.SendOperator(message):
                self._metrics.sent_to_operator(message)
                self._progress_log.see(message)
                self._session.send(message)
            case core.CloseSession(after_s, reason):
                log.info("closing the session: %s", reason)
                self._session.close(after_s)
            case core.SpawnWorker(welcome):
                self._set_up_worker(welcome)
            case core.ToWorker(message):
                self._log_order(message)
                if isinstance(message, Directive) and self._hooks is not None:
                    self._hooks.install(message)
                self._worker.send(message)
            case core.KillWorker(reason):
                self._worker.kill(reason)
            case core.ConnectLiveness(peers, key):
                self._names = {activity.hash_of(x): x for x in (self._agent, *_agents(peers))}
                self._liveness.watch(peers, key)
            case core.Exit():
                self._exit(effect)

    def _log_order(self, message: Stop | Directive | Continuation) -> None:
        """Orders are rare, and useful in the log."""
        match message:
            case Stop():
                log.info("stopped by %s", message.fence)
            case Directive():
                log.info("plan %s from step %d", message.fence, message.target)
            case Continuation():
                log.info("continuation of plan %s", message.fence)

    def _set_up_worker(self, welcome: Welcome) -> None:
        """The process is already running, so that torch is imported by now."""
        self._is_worker_expected = True
        log.info("admitted to %s; the worker builds model and data", welcome.job)
        self._worker.send(welcome)
        self._set_up_hooks(welcome)
        if self._early_exit is not None:
            asyncio.get_running_loop().call_soon(self._handle, self._early_exit)

    def _set_up_hooks(self, welcome: Welcome) -> None:
        try:
            spec = from_json(welcome.spec_json)
        except ValueError:  # the worker says so
            return
        if spec.hooks:
            self._hooks = Hooks(self._agent, welcome.job, spec)
            self._hooks_task = asyncio.create_task(self._hooks.run())

    def _exit(self, decision: core.Exit) -> None:
        if not self._exit_decision.done():
            self._exit_decision.set_result(decision)


def write_termination(path: Path, reason: str) -> None:
    """Kubernetes shows this file as the container's termination message, if it has made it."""
    if path.exists():
        with contextlib.suppress(OSError):
            path.write_text(texts.cut(reason, texts.MOST_TERMINATION_BYTES), encoding="utf-8")


def _identity(config: Config, sockets: _Sockets) -> Hello:
    return Hello(
        agent=AgentId(config.agent),
        pod_uid=config.pod_uid,
        node=config.node,
        zone=config.zone,
        machine=config.machine,
        data_address=_address(sockets.data),
        liveness_address=_address(sockets.liveness),
    )


def _agents(peers: tuple[Peer, ...]) -> list[AgentId]:
    return [peer.agent for peer in peers]


def _address(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return join_address(host, port)


def _listening(host: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, 0), family=family, backlog=128)
