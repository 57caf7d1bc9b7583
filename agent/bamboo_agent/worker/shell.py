"""The worker's shell: feeds events to the executor and performs its effects, one turn at a time.

It owns the payloads and makes no decisions. It gives the device instructions, as many at a time as
the executor allows, and waits for one only when nothing else is to be done. Operator messages,
arrived frames and finished files are handled between two instructions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace

from bamboo_agent.compute.backend import Backend
from bamboo_agent.compute.checks import CorruptionError
from bamboo_agent.compute.state import TrainingSetup
from bamboo_agent.device.completions import Stream, stream_of
from bamboo_agent.ipc.activity import ActivityWriter
from bamboo_agent.loading.loader import Loader
from bamboo_agent.payloads.frames import Frame
from bamboo_agent.payloads.kinds import LayerRecord
from bamboo_agent.payloads.serialization import pack, unpack
from bamboo_agent.storage import sight
from bamboo_agent.storage.checkpoint import CheckpointError, Checkpoints, Header
from bamboo_agent.storage.origin import Origin
from bamboo_agent.storage.reader import Reader
from bamboo_agent.storage.saver import Saved, Saver
from bamboo_agent.storage.sealer import Sealer
from bamboo_agent.transport.base import Arrived, Broken, Transport
from bamboo_agent.user_code import told
from bamboo_agent.worker import failures
from bamboo_agent.worker.checkpointing import Checkpointing, Told
from bamboo_agent.worker.event_log import LoggedExecutor, open_log
from bamboo_agent.worker.failures import TaskError
from bamboo_agent.worker.feeding import Feeding
from bamboo_agent.worker.given import Given
from bamboo_agent.worker.meter import Meter
from bamboo_agent.worker.waiting import describe_wait
from bamboo_core.api.spec import JobSpec
from bamboo_core.model.claims import DisputedError
from bamboo_core.model.items import Item, Kind
from bamboo_core.model.program import BACKWARDS, Instruction, Op
from bamboo_core.protocol.execution.issued import ON_DEVICE
from bamboo_core.protocol.execution.lane import Patience
from bamboo_core.protocol.executor import (
    Drop,
    Effect,
    Executor,
    ProtocolError,
    Retract,
    Run,
    SendOperator,
    StepEnded,
    Transmit,
)
from bamboo_core.protocol.messages import (
    AgentMessage,
    AgentReport,
    Cause,
    CommitRecord,
    Continuation,
    Directive,
    Disputed,
    Finished,
    Halted,
    Left,
    Manifest,
    Stop,
    Suspicion,
)

log = logging.getLogger(__name__)


_OF_CHECKPOINTS = frozenset({Op.SAVE, Op.SEAL, Op.LOAD})
_HALTING = frozenset({Op.F, Op.V, Op.VOTE}) | BACKWARDS
"""They run code of the user's, and change no layer."""
_KEPT = frozenset({Kind.ACT, Kind.OUT, Kind.EVAL, Kind.INGRAD, Kind.PIECE})
"""They are sent as they are stored, and stored as they come, until all that reads them is done."""


class Worker:
    """One agent's training.

    send: sends a message to the operator. checkpoints: None if the job keeps none. activity: where
    the supervisor sees what this worker does. identity: for manifests; origin: the checkpoint with
    which the job begins; see :mod:`bamboo_agent.storage.origin`. stream: of the device.
    loader: reads samples; None: this process does so.
    """

    def __init__(
        self,
        *,
        setup: TrainingSetup,
        spec: JobSpec,
        transport: Transport,
        checkpoints: Checkpoints | None,
        send: Callable[[AgentMessage], None],
        activity: ActivityWriter | None = None,
        identity: Mapping[str, str] | None = None,
        origin: Origin | None = None,
        stream: Stream | None = None,
        loader: Loader | None = None,
    ) -> None:
        self._stream = stream = stream or stream_of(setup.device)
        layers = len(setup.sizes)
        self.executor = Executor(setup.agent, layers, ahead=stream.ahead, patience=Patience())
        watched = replace(setup, data=setup.data.watched(lambda: self._given.reading_data()))
        if loader is not None:
            watched.data.read_by(loader)
        self._feeding = Feeding(loader, watched.data, self.executor)
        self.backend = Backend(watched, self._read_layer, self.executor.commits)
        log_file = open_log(setup.agent, layers, stream.ahead)
        self._events = LoggedExecutor(self.executor, log_file)
        self._spec, self._transport, self._send = spec, transport, send
        self._agent, self._device = setup.agent, setup.device
        self._identity = dict(identity or {})
        self._storage = Checkpointing(checkpoints, setup.agent, spec, send, origin)
        self._pending: Instruction | None = None
        self._manifest: Manifest | None = None
        self._farewell: Left | Finished | None = None  # waits until all is written and sent
        self._meter = Meter(self.backend.host_memory.tally, self.backend.held, self._feeding)
        self._given = Given(stream, self._meter, activity, has_loader=loader is not None)

    # ------------------------------------------------------------ events

    def stop(self, stop: Stop) -> None:
        """Adopt the fence and report as soon as the running instruction has ended.

        An instruction that waits for the storage has not begun, so it is given up. A listing that
        the operator wants is made in the background.
        """
        if stop.want_manifests:
            self._storage.begin_listing(stop.fence, stop.suspect)
        self._perform(self._events.stop(stop))
        if self.executor.is_stopping and self._waits_for_data:
            while self._given:
                self._hear_device(wait=True)
            self._abandon()
        elif self.executor.is_stopping and self.waits_for_storage:
            self._abandon()

    def install(self, directive: Directive) -> None:
        peers = {peer.agent: peer for peer in directive.peers}
        self._transport.introduce(fence=directive.fence, key=directive.key, peers=peers)
        if directive.fence == self.executor.fence:
            self.backend.adopt_batch(
                directive.batch, compares=directive.compares, question=directive.question
            )
            self.backend.host_memory.is_used = directive.hosts_ahead
            self.backend.held.host({x for lo, hi in directive.hosted for x in range(lo, hi)})
            self._manifest = directive.manifest
            self._storage.begin(directive)
        self._perform(self._events.install(directive))
        if directive.fence == self.executor.installed:
            self._feeding.begin_plan()

    def proceed(self, continuation: Continuation) -> None:
        """The programs after the plan's first step."""
        directive = self.executor.directive
        is_new = directive is not None and self.executor.takes(continuation)
        if directive is not None and is_new:
            peers = {peer.agent: peer for peer in continuation.peers}
            self._transport.introduce(fence=continuation.fence, key=directive.key, peers=peers)
            self._storage.meet(directive, continuation.peers)
        self._perform(self._events.proceed(continuation))
        if is_new:
            self._feeding.begin_plan()

    def turn(self) -> bool:
        """Handle all events, then run at most one instruction, or wait for the device. False: there
        was nothing to do."""
        has_news = self._hear_peers()
        has_news |= self._hear_storage()
        has_news |= self._hear_device()
        has_news |= self._feeding.hear()
        self._say_farewell()
        if self._pending is None or self.waits_for_storage or self._waits_for_data:
            return has_news or self._hear_device(wait=True)
        self._run(self._pending)
        return True

    @property
    def longest_s(self) -> float:
        """The longest time of an instruction, without that in which it read data."""
        return self._given.longest_s

    @property
    def sources(self) -> list[Transport | Saver | Sealer | Reader | Loader]:
        """Objects whose descriptors can wake the worker."""
        return [self._transport, *self._storage.sources, *self._feeding.sources]

    @property
    def due_in_s(self) -> float | None:
        """Call :meth:`turn` after so many seconds at the latest; None: when it is woken."""
        return self._feeding.due_in_s

    @property
    def _waits_for_data(self) -> bool:
        return self._feeding.waits(self._pending)

    @property
    def waits_for_storage(self) -> bool:
        """Whether the next instruction waits for layers, or for room for the last checkpoint."""
        task = self._pending
        if task is None:
            return False
        if task.op is Op.LOAD:
            return self._storage.loaded is None
        return task.op is Op.SAVE and self._is_last(task) and not self._storage.has_room(task.step)

    def describe_wait(self, activity: ActivityWriter) -> None:
        """Tell the supervisor what the worker waits for, now that a turn had nothing to do."""
        describe_wait(
            activity,
            self.executor,
            data=self._feeding.awaited(self._pending),
            is_writing=self._storage.is_writing,
            has_farewell=self._farewell is not None,
        )

    @property
    def is_leaving(self) -> bool:
        """EXIT has run, all is written, and frames are still being sent."""
        return isinstance(self._farewell, Left) and not self._storage.is_writing

    @property
    def is_storage_busy(self) -> bool:
        """Whether something of the storage is still to come."""
        return self._storage.is_busy

    def close(self) -> None:
        """Finish writing files and close all connections."""
        self._feeding.close()
        self._storage.close()
        self._transport.close()
        self._events.close()

    def _hear_peers(self) -> bool:
        """Whether something has come from other agents."""
        events = self._transport.poll()
        for event in events:
            if isinstance(event, Arrived):
                self._arrived(event)
            else:
                self._broken(event)
        return bool(events)

    def _arrived(self, event: Arrived) -> None:
        frame, item = event.frame, event.frame.item
        word = sight.of_frame(frame)
        if word is not None:
            self._storage.hear(event.peer, word)
            return
        if self.executor.accepts(item, frame.fence) and item.kind is not Kind.COMMIT:
            with self._copies(item.kind):
                payload = unpack(item.kind, frame.meta, frame.tensors, self._device)
            self.backend.accept(item, payload)
        self._perform(self._events.arrive(item, frame.fence, frame.commit, event.at))

    def _broken(self, event: Broken) -> None:
        if event.fence == self.executor.fence:
            self._send(Suspicion(event.peer, Cause.CHANNEL_BROKEN, event.fence))

    def _hear_storage(self) -> bool:
        """Whether something has come from the storage."""
        has_news, results = self._storage.poll()
        for result in results:
            if isinstance(result, Saved):
                self.backend.store[result.item] = result.record
                self._perform(self._events.saved(result.item))
            elif isinstance(result, Told):
                frame = sight.to_frame(result.word, self._agent, self.executor.fence)
                self._transport.send(result.peer, frame)
            else:
                self._refuse(result)
        return has_news

    def _hear_device(self, *, wait: bool = False) -> bool:
        """Whether the device has done something. wait: until it has, if it has anything to do."""
        has_news = False
        while self._given and self._ends_first(wait=wait and not has_news):
            has_news = True
            # what came meanwhile is in time for the program: nothing is computed ahead of it
            self._hear_peers()
            self._perform(self._events.done(None))
        return has_news

    def _ends_first(self, *, wait: bool) -> bool:
        first = self._given.first()
        try:
            return self._given.end_first(wait=wait)
        except RuntimeError as error:  # nothing can be done with this device any more
            raise TaskError(f"{first}: {told(error)}") from error

    def _say_farewell(self) -> None:
        """Tell the operator, which then lets the process go, only once nothing can be lost."""
        message = self._farewell
        if message is None or self._storage.is_writing:
            return
        if isinstance(message, Finished) or self._transport.is_idle:
            self._farewell = None
            self._send(message)

    # ------------------------------------------------------------ effects

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Run):
                self._begin(effect.instruction)
            elif isinstance(effect, Transmit):
                self._transmit(effect)
            elif isinstance(effect, Drop):
                if effect.for_room:
                    self._meter.dropped += len(effect.items)
                for item in effect.items:
                    self.backend.drop(item)
            elif isinstance(effect, Retract):
                self.backend.retract(is_new=effect.is_new)
            elif isinstance(effect, StepEnded):
                fence, moved = self.executor.fence, self._transport
                self._send(self._meter.end_step(effect.commit, fence, moved.sent, moved.goodput))
            else:
                self._send_to_operator(effect)

    def _transmit(self, effect: Transmit) -> None:
        item = effect.item
        if item.kind is Kind.COMMIT:
            frame = Frame(item, effect.fence, effect.commit)
        else:
            payload = self.backend.payload(item)
            with self._copies(item.kind):
                serialized = pack(payload)
            frame = Frame(
                item,
                effect.fence,
                effect.commit,
                serialized.meta,
                serialized.tensors,
                serialized.owner,
            )
        frame.lend()
        self._transport.send(effect.peer, frame)

    def _copies(self, kind: Kind) -> AbstractContextManager[object]:
        return self._stream.copies() if kind in _KEPT else nullcontext()

    def _send_to_operator(self, effect: SendOperator) -> None:
        message: AgentMessage = effect.message
        if isinstance(message, Left | Finished):
            self._farewell = message
            return
        if isinstance(message, AgentReport):
            self._farewell = None  # of the plan that this fence supersedes
            self._transport.adopt(message.fence)
            message = self._without_lost_files(message)
        self._send(message)

    def _without_lost_files(self, report: AgentReport) -> AgentReport:
        held = self.executor.held
        steps = self._storage.adopt(report.fence.attempt, held, self.backend.store)
        if not steps:
            return report
        self._perform(self._events.unsaved(steps))
        return replace(report, items=frozenset(held))

    # ------------------------------------------------------------ instructions

    def _begin(self, instruction: Instruction) -> None:
        """Have its layers read, if it needs any."""
        if instruction.op in _OF_CHECKPOINTS and not self._storage.is_kept:
            raise ProtocolError(f"{instruction} in a job without checkpoints")
        self._pending, manifest = instruction, self._manifest
        if instruction.op is Op.LOAD:
            if manifest is None or manifest.step != instruction.step:
                raise ProtocolError(f"{instruction}, but the plan's manifest is {manifest}")
            self._storage.load(manifest, (instruction.lo, instruction.hi))

    def _run(self, instruction: Instruction) -> None:
        self._pending = None
        self._given.begin(instruction)
        try:
            commit = self._do(instruction)
        except CorruptionError:
            raise
        except DisputedError as found:
            self._send(Disputed(self.executor.fence, instruction.step, found.disputes))
            self._abandon()
            return
        except (Exception, SystemExit) as error:
            text = f"{instruction}: {told(error)}"
            if instruction.op is not Op.R:
                self._hear_rest()
                if self._halts(instruction, error):
                    return
                raise failures.task_error(instruction, error) from error
            log.warning("what would have been computed ahead is left out: %s", text)
            self._meter.failed += 1
            self._skip()
            return
        finally:
            self._given.leave()
        if self._given.has(instruction):
            self._perform(self._events.issued())
            return
        self._given.end()
        # what came meanwhile is in time for the program: nothing is computed ahead of it
        self._hear_peers()
        self._perform(self._events.done(commit))

    def _hear_rest(self) -> None:
        """An instruction has failed: what the device was given before it counts."""
        with suppress(TaskError):  # it may have failed with the device
            while self._given:
                self._hear_device(wait=True)

    def _halts(self, instruction: Instruction, error: BaseException) -> bool:
        """Whether only a STOP is waited for: the user's code has failed, and changed no layer."""
        if instruction.op not in _HALTING or self._given or isinstance(error, SystemExit):
            return False
        assert isinstance(error, Exception)
        line = failures.in_mid_job(error)
        if line:
            log.error("%s", line, exc_info=error)
            self._abandon()
            self._send(Halted(self.executor.fence, line))
        return bool(line)

    def _skip(self) -> None:
        """The program needs no slice: it goes on without the rest of this forward."""
        self._hear_peers()
        self._perform(self._events.skip())

    def _do(self, instruction: Instruction) -> CommitRecord | None:
        if instruction.op in ON_DEVICE:
            self._given.issue(lambda: self.backend.run(instruction))
            return None
        if self.backend.can_run(instruction.op):
            commit = self.backend.run(instruction)
            self._given.drain()
            if instruction.op is Op.LOAD:
                self._storage.forget_layers()
            return commit
        if instruction.op is Op.SAVE:
            self._save(instruction)
        elif instruction.op is Op.SEAL:
            self._seal(instruction)
        else:
            raise ProtocolError(f"no back end performs {instruction.op}")
        return None

    def _read_layer(self, layer: int) -> LayerRecord:
        loaded, task = self._storage.loaded, self.executor.running
        assert loaded is not None
        assert task is not None
        return loaded[layer - task.lo]

    def _abandon(self) -> None:
        """Give up the instruction; only a STOP helps."""
        self._pending = None
        self._storage.forget_layers()
        self._perform(self._events.abandon())

    def _refuse(self, error: CheckpointError) -> None:
        """A checkpoint is wrong: report it and wait for another plan."""
        assert self._manifest is not None
        self._storage.refuse(self._manifest.attempt, self._manifest.step, error)
        self._abandon()

    def _is_last(self, save: Instruction) -> bool:
        """Whether it is a SAVE of the job's last checkpoint, or of the one before a suspension."""
        directive = self.executor.directive
        return directive is not None and save.step >= directive.last

    def _save(self, save: Instruction) -> None:
        layers = self.backend.layers
        self._storage.save(save.step, (save.lo, save.hi), lambda layer: layers[layer].record())

    def _seal(self, instruction: Instruction) -> None:
        step, attempt = instruction.step, self.executor.fence.attempt
        items = [Item.file(step, x) for x in range(self.executor.layers)]
        files = [self.backend.store[i] for i in items]
        self._storage.seal(self._header(attempt, step), files, self._validated(instruction))

    def _validated(self, seal: Instruction) -> CommitRecord | None:
        """The record with the values of the step's validation; None: they are not asked for, or
        there was no validation."""
        if seal.item is not None:
            return self.executor.commits[seal.item.step]
        return self.backend.scored(seal.step) if seal.ranges else None

    def _header(self, attempt: int, step: int) -> Header:
        directive = self.executor.directive
        assert directive is not None
        seed, batch = self._spec.seed, directive.batch
        return Header(attempt, step, seed=seed, batch=batch, identity=self._identity)
