"""torch._dynamo is not loaded by training, and is itself as soon as anybody wants it."""

from __future__ import annotations

import functools
import subprocess
import sys

import pytest

_TRAIN = """
import sys, torch
from bamboo_agent.setup.lazy_dynamo import defer_import
if {is_deferred}:
    defer_import()
    defer_import()
torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
for kind in (torch.optim.AdamW, torch.optim.SGD, torch.optim.Adafactor):
    optimizer = kind(model.parameters(), lr=0.1)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.zero_grad()
is_loaded = "torch._dynamo.convert_frame" in sys.modules
print(is_loaded, model.weight.sum().item().hex())
"""

_WANTED = {
    # What was asked not to be compiled before the compiler was there is not compiled.
    "marks": """
def marked(x):
    return x + torch.compiler.is_compiling()
plain = torch.compiler.disable
for mark in (plain, plain(), torch._dynamo.disable(recursive=True)):
    compiled = torch.compile(lambda x, f=mark(marked): f(x) * 2, backend="eager")
    assert compiled(torch.ones(1)).item() == 2
compiled = torch.compile(model, backend="eager")
assert torch.equal(compiled(torch.ones(1, 4)), model(torch.ones(1, 4)))
torch.optim.SGD(model.parameters(), lr=0.1).step()
""",
    # What has run before the compiler was there is not compiled afterwards.
    "calls": """
from torch._compile import _disable_dynamo
@_disable_dynamo
def marked(x):
    return x + torch.compiler.is_compiling()
assert marked(torch.ones(1)).item() == 1
compiled = torch.compile(lambda x: marked(x) * 2, backend="eager")
for _ in range(2):
    assert compiled(torch.ones(1)).item() == 2
""",
    # One object, whichever way it is found.
    "submodules": """
import torch._dynamo.config
torch._dynamo.config.recompile_limit = 3
from torch._dynamo.exc import Unsupported
from torch._dynamo import eval_frame, exc
assert sys.modules["torch._dynamo.convert_frame"].config.recompile_limit == 3
assert exc.Unsupported is Unsupported is sys.modules["torch._dynamo.symbolic_convert"].Unsupported
assert torch._dynamo.config.__spec__.origin.endswith("config.py")
""",
    # An import that fails fails again, with its own words, and what works without it goes on.
    "failure": """
sys.modules["torch._dynamo.convert_frame"] = None
for _ in range(2):
    try:
        torch._dynamo.explain
    except ImportError as error:
        assert "convert_frame" in str(error), error
    else:
        raise AssertionError("it was imported")
    torch.optim.SGD(model.parameters(), lr=0.1).step()
del sys.modules["torch._dynamo.convert_frame"]
torch._dynamo.explain
""",
}


_HEAVY = ("torch._dynamo.convert_frame", "torch.distributed.tensor", "sympy", "torch.onnx")


def run(program: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@functools.cache
def right_bits() -> str:
    """The bits of a training in which the optimizers import the compiler, as in plain torch."""
    is_loaded, bits = run(_TRAIN.format(is_deferred=False))
    assert is_loaded == "True"
    return bits


@pytest.mark.rotating(3)
@pytest.mark.parametrize("wanted", _WANTED.values(), ids=_WANTED)
def test_optimizers_do_without_it_and_an_agent_that_wants_a_layer_gets_it(wanted: str) -> None:
    then = "print('torch._dynamo.convert_frame' in sys.modules)"
    is_loaded, bits, now = run(_TRAIN.format(is_deferred=True) + wanted + then)
    assert (is_loaded, now) == ("False", "True")
    assert bits == right_bits()


def test_the_worker_starts_without_what_training_does_not_need() -> None:
    """A helper of torch.distributed.pipelining has brought all of it in, and so does what makes
    torch deterministic, since it tells the compiler."""
    program = f"""
import sys, torch
before = set(sys.modules)
from bamboo_agent.compute import stage
from bamboo_agent.setup.determinism import make_deterministic
make_deterministic()
print(stage.BEST_HALVES.name, *[name for name in {_HEAVY} if name in set(sys.modules) - before])
print(torch.are_deterministic_algorithms_enabled())
print(torch.is_deterministic_algorithms_warn_only_enabled())
import torch._inductor.config
print(torch._inductor.config.deterministic)
"""
    assert run(program) == ["HELPER", "True", "False", "True"]


@pytest.mark.rotating(3)
def test_a_compiler_that_is_there_already_is_made_deterministic_too() -> None:
    program = """
import torch._inductor.config
from bamboo_agent.setup.determinism import make_deterministic
make_deterministic()
print(torch.are_deterministic_algorithms_enabled(), torch._inductor.config.deterministic)
"""
    assert run(program) == ["True", "True"]
