"""What ends a worker: the user's code, or a fault of this node that another node may not have."""

from __future__ import annotations

import errno
import io
import itertools
import os
import sys
from dataclasses import replace

import pytest
import torch

from bamboo_agent.compute.checks import CorruptionError
from bamboo_agent.data.batches import DataTooSmallError, SampleError
from bamboo_agent.data.targets import UnevenTargetsError
from bamboo_agent.model import FactoryError
from bamboo_agent.payloads.plain_values import StateError
from bamboo_agent.storage.checkpoint import CheckpointError
from bamboo_agent.worker.failures import judge
from bamboo_agent.worker.shell import TaskError
from bamboo_core.api.spec import FactorySpec
from bamboo_core.protocol.exit_codes import ExitCode
from bamboo_core.protocol.messages import Failure
from bamboo_sim.workers import plans
from bamboo_sim.workers.jobs import tiny_gpt
from bamboo_sim.workers.process_fleet import ProcessFleet


def told(text, cause):
    """As a factory's error is told: m:f raised ..."""
    error = FactoryError(text)
    error.__cause__ = cause
    return error


EIO = OSError(errno.EIO, "Input/output error")
ENOENT = FileNotFoundError(errno.ENOENT, "No such file or directory", "/data/index")


@pytest.mark.parametrize(
    "cause",
    [
        ImportError("no module named x"),
        AttributeError("x"),
        TypeError("x"),
        ValueError("x"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        RuntimeError("Expected all tensors on the same device, found cuda:0 and cpu"),
        None,
    ],
    ids=repr,
)
@pytest.mark.parametrize("ready", [False, True])
def test_errors_of_the_users_code_are_the_user_s(cause, ready):
    found = judge(told("m:f raised Something: x", cause), ready=ready)
    assert found == ("UserCodeFailed", "m:f raised Something: x", ExitCode.USER)


@pytest.mark.parametrize(
    "cause",
    [
        EIO,
        ENOENT,
        PermissionError(errno.EACCES, "Permission denied"),
        ConnectionResetError("reset by peer"),
        TimeoutError("timed out"),
        MemoryError("no memory"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        torch.AcceleratorError("CUDA error: an illegal memory access was encountered", 0),
        RuntimeError("CUDA error: no kernel image is available"),
        RuntimeError("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED"),
        RuntimeError("No CUDA GPUs are available"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 8 bytes"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("ready", [False, True])
def test_errors_of_the_node_are_not_the_user_s(cause, ready):
    text = f"m:f raised {type(cause).__name__}: {cause}"
    found = judge(told(text, cause), ready=ready)
    assert found == ("SetUpFailed", text.partition("\n")[0], ExitCode.FAILED)


def raised_while_handling():
    try:
        try:
            raise EIO
        except OSError:
            raise RuntimeError("cannot read shard 3")  # noqa: B904
    except RuntimeError as error:
        return error


def raised_instead():
    try:
        try:
            raise ENOENT
        except OSError:
            raise ValueError("unknown split 'tarin'") from None
    except ValueError as error:
        return error


def raised_from():
    try:
        raise RuntimeError("cannot read shard 3") from EIO
    except RuntimeError as error:
        return error


@pytest.mark.parametrize("raised", [raised_while_handling, raised_from])
def test_the_cause_below_the_factory_s_error_is_found_and_told(raised):
    error = told("m:f raised RuntimeError: cannot read shard 3\nsecond line", raised())
    assert judge(error, ready=False) == (
        "SetUpFailed",
        "m:f raised RuntimeError: cannot read shard 3 (OSError: [Errno 5] Input/output error)",
        ExitCode.FAILED,
    )


def test_a_cause_without_words_is_told_by_its_type():
    told_it = judge(told("m:f raised ValueError: x", MemoryError()), ready=False)
    assert told_it.line == "m:f raised ValueError: x (MemoryError)"


def test_a_cause_that_the_user_s_code_has_hidden_does_not_count():
    error = told("m:f raised ValueError: unknown split", raised_instead())
    assert judge(error, ready=False).code is ExitCode.USER


def test_a_chain_that_is_a_circle_ends():
    one, other = ValueError("a"), ValueError("b")
    one.__cause__, other.__cause__ = other, one
    assert judge(told("m:f raised ValueError: a", one), ready=False).code is ExitCode.USER


@pytest.mark.parametrize(
    ("error", "ready", "verdict"),
    [
        (DataTooSmallError("few"), False, ("DataTooSmall", "few", 2)),
        (CheckpointError("no such scheme"), False, ("CheckpointFailed", "no such scheme", 2)),
        (CorruptionError("two"), True, ("Corruption", "CorruptionError: two", 1)),
        (KeyError("text"), True, ("TaskFailed", "KeyError: 'text'", 1)),
        (RuntimeError("oom\nmore"), True, ("TaskFailed", "RuntimeError: oom", 1)),
        (RuntimeError(""), True, ("TaskFailed", "RuntimeError", 1)),
        (SampleError("m:f, sample 3"), True, ("UserCodeFailed", "m:f, sample 3", 2)),
        (RuntimeError("no driver"), False, ("SetUpFailed", "RuntimeError: no driver", 1)),
        (FactoryError(""), True, ("UserCodeFailed", "FactoryError", 2)),
    ],
    ids=repr,
)
def test_other_errors_are_told_with_their_type(error, ready, verdict):
    assert judge(error, ready=ready) == verdict


def test_storage_that_cannot_be_reached_is_not_the_user_s():
    error = CheckpointError("checkpoint.uri 's3://x' cannot be used: refused")
    error.__cause__ = ConnectionRefusedError("refused")
    assert judge(error, ready=False) == (
        "SetUpFailed",
        "checkpoint.uri 's3://x' cannot be used: refused",
        ExitCode.FAILED,
    )


def ended(*errors):
    """Each of the errors is the cause of the one before it."""
    for error, cause in itertools.pairwise(errors):
        error.__cause__ = cause
    return errors[0]


@pytest.mark.parametrize("kind", [SampleError, UnevenTargetsError, StateError])
def test_errors_of_users_code_below_an_instruction_s_are_the_user_s(kind):
    for error in (
        kind("too bad"),
        ended(TaskError("F0: too bad"), kind("too bad")),
        ended(TaskError("SAVE: x"), RuntimeError("x"), kind("too bad"), KeyError("y")),
    ):
        assert judge(error, ready=True) == ("UserCodeFailed", "too bad", ExitCode.USER)


@pytest.mark.parametrize(
    "errors",
    [
        (UnevenTargetsError("too bad"), RuntimeError("x"), EIO),
        (SampleError("no file"), FileNotFoundError(2, "No such file or directory")),
        (StateError("too bad"), MemoryError()),
        (CheckpointError("no such scheme"),),
        (FactoryError("too bad"),),
        (EIO,),
    ],
    ids=repr,
)
def test_other_errors_below_an_instruction_s_stay_the_node_s(errors):
    error = ended(TaskError("F0: words"), *errors)
    assert judge(error, ready=True) == ("TaskFailed", "TaskError: F0: words", ExitCode.FAILED)


def test_corruption_stays_corruption():
    error = ended(CorruptionError("two"), StateError("too bad"))
    assert judge(error, ready=True).reason == "Corruption"


@pytest.mark.parametrize("letter", ["x", "层"])
@pytest.mark.parametrize("kind", [FactoryError, RuntimeError])
def test_a_long_line_is_cut_so_that_every_receiver_takes_it(kind, letter):
    line = judge(kind(letter * 100_000), ready=True).line
    assert 996 < len(line.encode()) <= 1000
    assert line.endswith(letter + "...")


class MuteError(RuntimeError):
    """Of a user's library, with a mistake of its own."""

    def __str__(self):
        raise KeyError("text")


@pytest.mark.parametrize("ready", [False, True])
def test_an_error_that_cannot_tell_its_text_is_judged_all_the_same(ready):
    """The worker ended by the second error: nobody heard of the first, nor that it is a user's."""
    found = judge(told("m:f raised MuteError: (...)", MuteError()), ready=ready)
    assert found == ("UserCodeFailed", "m:f raised MuteError: (...)", ExitCode.USER)
    found = judge(MuteError(), ready=ready)
    assert found.line == "MuteError: (its text cannot be had: KeyError)"


def strict():
    """A factory that sends the standard error through a stream of its own, and then fails."""

    class Strict(io.StringIO):
        def write(self, text):
            text.encode("ascii")
            return super().write(text)

    sys.stderr = Strict()
    return unreadable()


def unreadable():
    """A factory whose index names a file that is not there; its name is not UTF-8."""
    raise FileNotFoundError(os.fsdecode(b"/data/caf\xe9.jpg"))


@pytest.mark.parametrize("name", ["unreadable", "strict"])
def test_an_error_about_a_file_whose_name_is_not_utf_8_arrives(name):
    factory = FactorySpec(f"{__name__}:{name}")
    fleet = ProcessFleet(replace(tiny_gpt(), model=factory), plans.names(1))
    try:
        fleet.wait(lambda: bool(fleet.messages))
        text = (
            f"spec.model.factory: {__name__}:{name} raised FileNotFoundError: /data/caf\\udce9.jpg"
        )
        expected = Failure("SetUpFailed", text, user_error=False, exit_code=1)
        assert [message for _, message in fleet.messages] == [expected]
        (process,) = fleet.processes.values()
        process.join(20)
        assert process.exitcode == 1
    finally:
        fleet.close()
