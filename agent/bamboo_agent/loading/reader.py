"""The process that reads samples: builds the data sets of a job, and makes the micro-batches that
its worker wants, in that order.

The worker sends JSON objects over a socket: ``{"watch": [...]}``, the counts of targets that others
are compared with, and ``{"want": [[NUMBER, STEP, MICRO-BATCH, PARTS], ...]}``, all that it wants
now. It gets three numbers for each message (the request's, or 0; bytes of the header and of the
tensors) with the descriptor of the memory that has what was read: see
:mod:`bamboo_agent.loading.handing`.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch

from bamboo_agent.data.batches import Data, SampleError, which
from bamboo_agent.data.needs import Need, Part
from bamboo_agent.data.targets import Counted, TargetWatch
from bamboo_agent.device import precision
from bamboo_agent.ipc.parent import die_with
from bamboo_agent.loading.errors import record_of
from bamboo_agent.loading.handing import Handed, HandingError, hand_over, hand_over_record
from bamboo_agent.loading.progress import Doing, ReaderProgress
from bamboo_agent.payloads.flow import FlowError
from bamboo_core.api.spec import from_json

ANSWER = struct.Struct("=3q")
STARTED = 0
"""The number of the first answer: the data sets are built, or an error."""
MOST_MESSAGE = 1 << 16
_SOONER_TO_END = "500"
"""When memory is short, the process that reads ends before the worker, which has the layers."""
_WITHOUT = "spec.data.workers: 0 lets the agent read it itself"


def run(control: socket.socket, progress: ReaderProgress, spec: int, parent: int) -> NoReturn:
    """Serve until the worker has gone. spec: a descriptor of the job's spec as JSON; parent: the
    process with which this one ends."""
    die_with(parent)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_SOONER_TO_END, encoding="ascii")
    reader = _Reader(control, progress)
    try:
        size = os.fstat(spec).st_size
        reader.build(os.pread(spec, size, 0).decode())
    except BaseException as error:
        reader.answer(STARTED, hand_over_record(record_of(error)))
        os._exit(1)
    while True:
        reader.turn()


class _Reader:
    def __init__(self, control: socket.socket, progress: ReaderProgress) -> None:
        self._control, self._progress = control, progress
        self._wanted: dict[int, Need] = {}
        self._answered: set[int] = set()
        self._number = 0
        self._data: Data | None = None

    def build(self, spec_json: str) -> None:
        spec = from_json(spec_json)
        precision.set_products(spec.training.precision)
        self._data = data = Data(spec, torch.device("cpu"))
        lengths = {"training": data.training_samples, "validation": data.validation_samples}
        self._progress.write(Doing.WAITING)
        self.answer(STARTED, hand_over_record({"lengths": lengths}))

    def _note(self, index: int | None) -> None:
        if index is None:
            self._progress.write(Doing.COLLATING, self._number)
        else:
            self._progress.write(Doing.READING, self._number, index)

    def turn(self) -> None:
        """Hear what is wanted, and make one of it."""
        while not self._wanted or select.select([self._control], [], [], 0)[0]:
            try:
                message = self._control.recv(MOST_MESSAGE)
            except ConnectionError:
                message = b""
            if not message:  # the worker has gone
                os._exit(0)
            self._hear(json.loads(message))
        self._number = next(iter(self._wanted))
        need = self._wanted.pop(self._number)
        made = self._made(need)
        self._progress.write(Doing.WAITING)
        self._answered.add(self._number)
        self.answer(self._number, made)

    def _hear(self, message: Mapping[str, Any]) -> None:
        assert self._data is not None
        if "watch" in message:
            self._data.watches[:] = [_watch(*found) for found in message["watch"]]
            return
        wanted = {number: Need(step, m, Part(parts)) for number, step, m, parts in message["want"]}
        self._answered &= wanted.keys()  # the worker has not heard yet that it has these
        self._wanted = {n: need for n, need in wanted.items() if n not in self._answered}

    def _made(self, need: Need) -> Handed:
        """Read what is needed. It, or the error."""
        assert self._data is not None
        try:
            self._progress.write(Doing.COLLATING, self._number)
            inputs, targets = self._data.made(need.step, need.microbatch, self._note)
            both = {Part.INPUT: inputs, Part.TARGET: targets}
            return hand_over({part: both[part] for part in need.parts})
        except (FlowError, HandingError) as error:
            text = f"{which(need.step, need.microbatch)}: it cannot be handed over: {error}"
            return hand_over_record(record_of(SampleError(f"{text}; {_WITHOUT}")))
        except BaseException as error:
            return hand_over_record(record_of(error))

    def answer(self, number: int, handed: Handed) -> None:
        message = ANSWER.pack(number, handed.header, handed.body)
        try:
            socket.send_fds(self._control, [message], [handed.memory])
        except OSError:  # the worker has gone
            os._exit(0)
        os.close(handed.memory)


def _watch(ignored: int | None, training: list[int], validation: list[int] | None) -> TargetWatch:
    scored = None if validation is None else Counted(*validation)
    return TargetWatch(ignored, Counted(*training), scored)
