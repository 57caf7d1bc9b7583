"""What ends a worker: whose fault it is, and the line about it that the operator gets.

An error of the user's code occurs on every node, so the job may end with it. A broken disk, a
missing mount, a network or a device may be the fault of one node: the operator's failure policy
decides, and ends the job if it happens everywhere.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from bamboo_agent.compute.checks import CodeError, CorruptionError
from bamboo_agent.compute.optimizer_state import RateError
from bamboo_agent.data.batches import DataTooSmallError, SampleError
from bamboo_agent.data.targets import UnevenTargetsError
from bamboo_agent.device.properties import GpuUnsupportedError
from bamboo_agent.losses.forms import LossError
from bamboo_agent.model import FactoryError
from bamboo_agent.payloads.plain_values import StateError
from bamboo_agent.storage.checkpoint import CheckpointError
from bamboo_agent.user_code import causes, text_of, told
from bamboo_core.api import texts
from bamboo_core.api.reasons import FailureCause, Reason
from bamboo_core.model.program import BACKWARDS, Instruction, Op
from bamboo_core.protocol.exit_codes import ExitCode

_USERS: dict[type[Exception], Reason] = {
    FactoryError: Reason.USER_CODE_FAILED,
    SampleError: Reason.USER_CODE_FAILED,
    CodeError: Reason.USER_CODE_FAILED,
    StateError: Reason.USER_CODE_FAILED,
    GpuUnsupportedError: Reason.USER_CODE_FAILED,
    DataTooSmallError: Reason.DATA_TOO_SMALL,
    CheckpointError: Reason.CHECKPOINT_FAILED,
}
_IN_MID_JOB = (
    SampleError,
    CodeError,
    RateError,
    UnevenTargetsError,
    LossError,
    StateError,
)  # of users' code, whatever they end
_OF_NODE = (OSError, MemoryError, torch.OutOfMemoryError, torch.AcceleratorError)
_OF_DEVICE = (  # what torch says in a plain RuntimeError
    "CUDA error",
    "cuDNN error",
    "CUDA out of memory",
    "No CUDA GPUs are available",
    "can't allocate memory",
)


_OF_FILES = frozenset(
    {
        "FileNotFoundError",
        "IsADirectoryError",
        "NotADirectoryError",
        "PermissionError",
        "UnidentifiedImageError",
    }
)

_OF_USERS = frozenset({Op.F, Op.V, Op.UPDATE}) | BACKWARDS
"""They run code of the user's."""


class TaskError(Exception):
    """An instruction has failed. The text names it. The worker must exit.

    place: the instruction, if it runs code of the user's, and no device or file has failed.
    """

    def __init__(self, text: str, place: str = "") -> None:
        super().__init__(text)
        self.place = place


class Verdict(NamedTuple):
    """reason: one word; line: the essential line of the error, at most MOST_LINE_BYTES of UTF-8."""

    reason: str
    line: str
    code: ExitCode


def task_error(instruction: Instruction, error: BaseException) -> TaskError:
    """The error with which a worker ends after an instruction has failed."""
    is_code = instruction.op in _OF_USERS and not _is_any_of_node(error)
    return TaskError(f"{instruction}: {told(error)}", str(instruction) if is_code else "")


def judge(error: Exception, *, ready: bool) -> Verdict:
    """Whether the user or the node is at fault. ready: the worker had finished its set-up."""
    found = _judge(error, ready=ready)
    return found._replace(line=texts.cut(found.line, texts.MOST_LINE_BYTES))


def in_mid_job(error: Exception) -> str:
    """The line about an error of the user's code that whoever computes the same meets, too; empty:
    it is another error."""
    root = next((x for x in (error, *causes(error)) if isinstance(x, _IN_MID_JOB)), None)
    if root is None or isinstance(error, CorruptionError):
        return ""
    if any(_is_of_node(x) and not _is_of_file(x) for x in causes(root)):
        return ""
    return texts.cut(_first_line(str(root)) or type(root).__name__, texts.MOST_LINE_BYTES)


def _judge(error: Exception, *, ready: bool) -> Verdict:
    error = _root(error)
    reason = next((r for kind, r in _USERS.items() if isinstance(error, kind)), None)
    if reason is None:
        return Verdict(_reason(error, ready=ready), _typed(error), ExitCode.FAILED)
    line = _first_line(str(error)) or type(error).__name__
    cause = next((e for e in causes(error) if _is_of_node(e)), None)
    if cause is None:
        return Verdict(str(reason), line, ExitCode.USER)
    why = _first_line(text_of(cause)) or type(cause).__name__
    both = line if why in line else f"{line} ({_typed(cause)})"
    return Verdict(FailureCause.SET_UP_FAILED, both, ExitCode.FAILED)


def _root(error: Exception) -> Exception:
    """The error of the user's code that an instruction has ended with, or the error itself."""
    if isinstance(error, CorruptionError):
        return error
    for cause in (error, *causes(error)):
        if isinstance(cause, _IN_MID_JOB) and not any(map(_is_of_node, causes(cause))):
            return cause
    return error


def _is_any_of_node(error: BaseException) -> bool:
    """Whether the error, or one of its causes, may be the fault of one node."""
    return any(map(_is_of_node, (error, *causes(error))))


def _reason(error: Exception, *, ready: bool) -> str:
    if isinstance(error, CorruptionError):
        return FailureCause.CORRUPTION
    return FailureCause.TASK_FAILED if ready else FailureCause.SET_UP_FAILED


def _is_of_node(error: BaseException) -> bool:
    text = text_of(error)
    return isinstance(error, _OF_NODE) or (
        isinstance(error, RuntimeError) and any(words in text for words in _OF_DEVICE)
    )


def _is_of_file(error: BaseException) -> bool:
    """Whether a file is missing, closed to the reader or damaged. In mid-job that is most often the
    data's fault, and everybody's. It may come from another process, with its name and text only."""
    name = type(error).__name__
    is_plain = name == "OSError" and not text_of(error).startswith("[Errno")  # as PIL's
    return name in _OF_FILES or is_plain


def _typed(error: BaseException) -> str:
    """A text such as 'text' says little without its type: KeyError: 'text'."""
    return _first_line(told(error))


def _first_line(text: str) -> str:
    return next(iter(text.strip().splitlines()), "")
