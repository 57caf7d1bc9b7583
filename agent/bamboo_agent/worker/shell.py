"""The worker's shell: feeds events to the executor and performs its effects, one turn at a time.

It owns the payloads and makes no decisions. Only the running instruction blocks. Operator messages,
arrived frames and finished files are handled between two instructions.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace

from bamboo_agent.compute.backend import Backend, TrainingSetup
from bamboo_agent.compute.copies import DivergenceError
from bamboo_agent.compute.layers import LayerRecord
from bamboo_agent.compute.serialization import FileRecord, pack, unpack
from bamboo_agent.storage.checkpoint import CheckpointError, Checkpoints, Header
from bamboo_agent.storage.saver import Saver
from bamboo_agent.transport.base import Arrived, Broken, Frame, Transport
from bamboo_agent.worker.event_log import LoggedExecutor, open_log
from bamboo_core.api.spec import JobSpec
from bamboo_core.model.items import Item, Kind
from bamboo_core.model.program import COMPUTE, Instruction, Op
from bamboo_core.protocol.executor import (
    Drop,
    Effect,
    Executor,
    ProtocolError,
    Run,
    SendOperator,
    StepEnded,
    Transmit,
)
from bamboo_core.protocol.messages import (
    AgentMessage,
    AgentReport,
    BadCheckpoint,
    Cause,
    CommitRecord,
    Continuation,
    Directive,
    Left,
    Manifest,
    Progress,
    Sealed,
    Stop,
    Suspicion,
)

log = logging.getLogger(__name__)


class TaskError(Exception):
    """An instruction has failed. The text names it. The worker must exit."""


class Worker:
    """One agent's training.

    send: sends a message to the operator. checkpoints: None if the job keeps none.
    """

    def __init__(
        self,
        *,
        setup: TrainingSetup,
        spec: JobSpec,
        transport: Transport,
        checkpoints: Checkpoints | None,
        send: Callable[[AgentMessage], None],
    ) -> None:
        self.executor = Executor(setup.agent, len(setup.sizes))
        self.backend = Backend(setup, self._read_layer, self.executor.commits)
        self.saver = None if checkpoints is None else Saver(checkpoints, setup.agent)
        self._events = LoggedExecutor(self.executor, open_log(setup.agent, len(setup.sizes)))
        self._spec, self._transport, self._send = spec, transport, send
        self._agent, self._device = setup.agent, setup.device
        self._checkpoints = checkpoints
        self._pending: Instruction | None = None
        self._manifest: Manifest | None = None
        self._wants_manifests = False
        self._is_leaving = False
        self.longest_s = 0.0
        self._meter = _Meter()

    # ------------------------------------------------------------ events

    def stop(self, stop: Stop) -> None:
        """Adopt the fence and report as soon as the running instruction has ended."""
        self._wants_manifests = stop.want_manifests
        self._perform(self._events.stop(stop))

    def install(self, directive: Directive) -> None:
        peers = {peer.agent: peer for peer in directive.peers}
        self._transport.introduce(fence=directive.fence, key=directive.key, peers=peers)
        if directive.fence == self.executor.fence:
            self.backend.adopt_batch(directive.batch)
            self._manifest = directive.manifest
        self._perform(self._events.install(directive))

    def proceed(self, continuation: Continuation) -> None:
        """The programs after the plan's first step."""
        directive = self.executor.directive
        if directive is not None and self.executor.takes(continuation):
            peers = {peer.agent: peer for peer in continuation.peers}
            self._transport.introduce(fence=continuation.fence, key=directive.key, peers=peers)
        self._perform(self._events.proceed(continuation))

    def turn(self) -> bool:
        """Handle all events, then run at most one instruction. False: there was nothing to do."""
        events = self._transport.poll()
        for event in events:
            if isinstance(event, Arrived):
                self._arrived(event.frame)
            else:
                self._broken(event)
        saved = [] if self.saver is None else self.saver.poll()
        for item, record, attempt in saved:
            self._saved(item, record, attempt)
        if self._is_leaving and self._transport.is_idle:
            self._is_leaving = False
            self._send(Left())
        if self._pending is None:
            return bool(events or saved)
        self._run(self._pending)
        return True

    @property
    def sources(self) -> list[Transport | Saver]:
        """What can wake the worker through its descriptor."""
        return [self._transport] if self.saver is None else [self._transport, self.saver]

    @property
    def is_leaving(self) -> bool:
        """EXIT has run, and frames are still being sent."""
        return self._is_leaving

    def close(self) -> None:
        """Finish writing files and close all connections."""
        if self.saver is not None:
            self.saver.close()
        self._transport.close()
        self._events.close()

    def _arrived(self, frame: Frame) -> None:
        item = frame.item
        if self.executor.accepts(item, frame.fence) and item.kind is not Kind.COMMIT:
            payload = unpack(item.kind, frame.meta, frame.tensors, self._device)
            self.backend.accept(item, payload)
        self._perform(self._events.arrive(item, frame.fence, frame.commit))

    def _broken(self, event: Broken) -> None:
        if event.fence == self.executor.fence:
            self._send(Suspicion(event.peer, Cause.CHANNEL_BROKEN, event.fence))

    def _saved(self, item: Item, record: FileRecord, attempt: int) -> None:
        if attempt == self.executor.fence.attempt:
            self.backend.store[item] = record
            self._perform(self._events.saved(item))

    # ------------------------------------------------------------ effects

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Run):
                self._pending = effect.instruction
            elif isinstance(effect, Transmit):
                self._transmit(effect)
            elif isinstance(effect, Drop):
                for item in effect.items:
                    self.backend.drop(item)
            elif isinstance(effect, StepEnded):
                self._send(self._meter.end_step(effect.commit))
            else:
                self._send_to_operator(effect)

    def _transmit(self, effect: Transmit) -> None:
        item = effect.item
        if item.kind is Kind.COMMIT:
            frame = Frame(item, effect.fence, effect.commit)
        else:
            serialized = pack(self.backend.payload(item))
            frame = Frame(
                item,
                effect.fence,
                effect.commit,
                serialized.meta,
                serialized.tensors,
                serialized.owner,
            )
        frame.lend()
        self._meter.sent_bytes += frame.num_bytes
        self._transport.send(effect.peer, frame)

    def _send_to_operator(self, effect: SendOperator) -> None:
        message: AgentMessage = effect.message
        if isinstance(message, Left):
            self._is_leaving = True  # sent when all frames have left
            return
        if isinstance(message, AgentReport):
            self._transport.adopt(message.fence)
            if self._wants_manifests:
                manifests = self._scan()
                items = frozenset(self.executor.held)  # without files that the scan has not found
                message = replace(message, manifests=manifests, items=items)
        self._send(message)

    def _scan(self) -> tuple[Manifest, ...]:
        if self._checkpoints is None:
            return ()
        good, bad = self._checkpoints.scan()
        for error in bad:
            text = f"{error}; this checkpoint is not used"
            self._send(BadCheckpoint(error.attempt, error.step, text))
        attempt = self.executor.fence.attempt
        torn = {error.step for error in bad if error.attempt == attempt}
        if torn:
            self._perform(self._events.unsaved(torn))
        return tuple(good)

    # ------------------------------------------------------------ instructions

    def _run(self, instruction: Instruction) -> None:
        self._pending = None
        started = time.perf_counter()
        try:
            commit = self._do(instruction)
        except CheckpointError as error:
            self._refuse(error)
            return
        except DivergenceError:
            raise
        except Exception as error:
            raise TaskError(f"{instruction}: {type(error).__name__}: {error}") from error
        elapsed = time.perf_counter() - started
        self.longest_s = max(self.longest_s, elapsed)
        self._meter.add(instruction, elapsed)
        self._perform(self._events.done(commit))

    def _do(self, instruction: Instruction) -> CommitRecord | None:
        if self.backend.can_run(instruction.op):
            return self.backend.run(instruction)
        if instruction.op is Op.SAVE:
            self._save(instruction)
        elif instruction.op is Op.SEAL:
            self._seal(instruction)
        else:
            raise ProtocolError(f"no back end performs {instruction.op}")
        return None

    def _read_layer(self, layer: int, step: int) -> LayerRecord:
        manifest = self._manifest
        if manifest is None or manifest.step != step or self._checkpoints is None:
            raise ProtocolError(f"LOAD of version {step}, but the plan's manifest is {manifest}")
        return self._checkpoints.read_layer(manifest, layer)

    def _refuse(self, error: CheckpointError) -> None:
        """A checkpoint cannot be read: report it and wait for another plan."""
        assert self._manifest is not None
        text = f"{error}; the checkpoint before it is used"
        self._send(BadCheckpoint(self._manifest.attempt, self._manifest.step, text))
        self._perform(self._events.abandon())

    def _save(self, instruction: Instruction) -> None:
        if self.saver is None:
            raise ProtocolError("SAVE in a job without checkpoints")
        attempt = self.executor.fence.attempt
        for layer in range(instruction.lo, instruction.hi):
            record = self.backend.layers[layer].record()
            self.saver.save(attempt=attempt, step=instruction.step, layer=layer, record=record)

    def _seal(self, instruction: Instruction) -> None:
        step, attempt = instruction.step, self.executor.fence.attempt
        layers = range(self.executor.layers)
        records = [self.backend.store[Item.file(step, x)] for x in layers]
        failed = [record.error for record in records if record.error]
        if failed or self._checkpoints is None:
            self._report_unsaved(attempt, step, failed[0] if failed else "the job keeps none")
            return
        try:
            manifest = self._checkpoints.seal(self._header(attempt, step), records)
        except CheckpointError as error:
            log.error("the manifest of step %d is not written: %s", step, error)
            self._report_unsaved(attempt, step, f"agent {self._agent}: {error.cause}")
            return
        self._send(Sealed(manifest))
        assert self._spec.checkpoint is not None
        try:
            self._checkpoints.prune(keep=self._spec.checkpoint.keep, newest=manifest)
        except CheckpointError as error:
            log.warning("an old checkpoint stays: %s", error)

    def _report_unsaved(self, attempt: int, step: int, why: str) -> None:
        text = f"the checkpoint of step {step} is not complete: {why}; training goes on without it"
        self._send(BadCheckpoint(attempt, step, text, cause=why))

    def _header(self, attempt: int, step: int) -> Header:
        directive = self.executor.directive
        assert directive is not None
        return Header(attempt=attempt, step=step, seed=self._spec.seed, batch=directive.batch)


class _Meter:
    """The figures of Progress: times, traffic, tasks computed again."""

    def __init__(self) -> None:
        self.sent_bytes = 0
        self._busy_s = 0.0
        self._ended_at = time.perf_counter()
        self._done: set[tuple[Op, int, int, int, int]] = set()
        self._redone = 0

    def add(self, instruction: Instruction, elapsed_s: float) -> None:
        """Count a completed instruction."""
        op, step, lo, hi, index = instruction[:5]
        if op not in COMPUTE:
            return
        self._busy_s += elapsed_s
        task = (op, step, lo, hi, index)
        self._redone += task in self._done
        self._done.add(task)

    def end_step(self, commit: CommitRecord) -> Progress:
        """The figures of the step that ends. The next one begins."""
        now = time.perf_counter()
        progress = Progress(
            commit,
            step_s=now - self._ended_at,
            busy_s=self._busy_s,
            sent_bytes=self.sent_bytes,
            redone_tasks=self._redone,
        )
        self.sent_bytes, self._busy_s, self._redone, self._ended_at = 0, 0.0, 0, now
        self._done.clear()
        return progress
