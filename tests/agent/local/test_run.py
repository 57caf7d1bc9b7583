"""`bamboo train --local`: real agents on this machine, through losses, signals and bad code."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest
from tests.agent.local.runs import Run, job, written

from bamboo_agent.data.order import sample_indices
from bamboo_agent.datasets import text
from bamboo_core.api import local_run
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.spec import FactorySpec, JobSpec, ModelSpec, RedundancySpec

pytestmark = pytest.mark.timeout(400)


def test_a_run_through_losses_has_the_bits_of_a_plain_loop_and_of_one_agent(
    tmp_path: Path,
) -> None:
    several = Run(job(tmp_path / "a"), tmp_path / "a", "--kill", "2", "--check")
    assert several.to_end() == 0, several.told
    assert several.ended.outcome is Outcome.COMPLETE
    assert [x.step for x in several.all_of(local_run.Step)] == list(range(8))
    assert [x.number for x in several.all_of(local_run.Killed)] == [1, 2]
    (compared,) = several.all_of(local_run.Compared)
    assert (compared.steps, compared.differs) == (8, "")
    assert compared.tensors > 50
    one = Run(job(tmp_path / "b", pipelines=1, stages=1), tmp_path / "b")
    assert one.to_end() == 0
    assert one.ended.digest == several.ended.digest
    assert not one.all_of(local_run.Compared)


def test_it_tells_the_layers_and_what_flows_between_them(tmp_path: Path) -> None:
    run = Run(job(tmp_path, pipelines=1, stages=1, steps=1), tmp_path)
    assert run.to_end() == 0
    layers = run.all_of(local_run.Layer)
    assert [x.index for x in layers] == list(range(-1, len(layers) - 1))
    assert layers[0].output.endswith("int64")
    assert all(x.output.endswith("float32") for x in layers[1:])
    assert [x.name for x in layers[1:]][-1] == "Head"


def test_it_tells_how_far_the_agents_are_until_the_first_step(tmp_path: Path) -> None:
    run = Run(job(tmp_path, pipelines=1, steps=2), tmp_path, "--check")
    assert run.to_end() == 0
    said = [x.text for x in run.all_of(local_run.Doing)]
    assert said[0] == "running each layer once"
    assert "building model, data and optimizer; measuring layers" in said
    assert "0 of 2 agents ready; starting: agent-0, agent-1" in said
    assert said[-1] == "comparing with a plain loop of 2 steps"
    steps = [n for n, x in enumerate(run.told) if isinstance(x, local_run.Step)]
    during = [x for x in run.told[steps[0] + 1 :] if "agents ready" in str(x)]
    assert not during


def test_a_signal_ends_it_with_a_checkpoint(tmp_path: Path) -> None:
    run = Run(job(tmp_path, pipelines=1, steps=2000), tmp_path)
    for told in run:
        if isinstance(told, local_run.Step) and told.step == 2:
            run.process.send_signal(signal.SIGINT)
    assert run.process.wait() == 1
    assert run.ended.outcome is Outcome.SUSPENDED
    steps = [x.step for x in run.all_of(local_run.Step)]
    assert run.ended.checkpoint.endswith(f"step-{max(steps) + 1:08}")
    assert len(steps) < 2000


def test_a_run_without_a_reader_ends_with_a_checkpoint(tmp_path: Path) -> None:
    """As after SIGKILL to the command. No agent is left."""
    run = Run(job(tmp_path, pipelines=1, steps=2000), tmp_path)
    own = Path(f"/proc/{run.process.pid}/task/{run.process.pid}/children")
    agents: list[str] = []
    for told in run:
        if isinstance(told, local_run.Step) and told.step == 2:
            agents = own.read_text().split()
            break
    run.close()
    assert run.process.wait() == 1
    assert len(agents) == 2
    assert not [x for x in agents if Path("/proc", x).exists()]
    kept = sorted(x.name for x in (tmp_path / "checkpoints").rglob("step-*"))
    assert "step-00000003" <= kept[-1] < "step-00002000"


def test_layers_that_do_not_chain_are_refused_at_once_with_the_chain(tmp_path: Path) -> None:
    code = written(
        tmp_path / "code",
        """
        from functools import partial
        from torch import nn
        from torch.nn.functional import cross_entropy
        from bamboo_agent.model import Model

        def build():
            return Model([partial(nn.Linear, 8, 16), partial(nn.Linear, 4, 2)], cross_entropy)

        class Data:
            def __len__(self):
                return 64

            def __getitem__(self, index):
                import torch
                return torch.ones(8), index % 2
        """,
    )
    spec = job(tmp_path / "run")
    spec = replace(
        spec,
        model=ModelSpec("mine:build"),
        data=replace(spec.data, factory="mine:Data", args={}, validation=None),
    )
    run = Run(spec, tmp_path / "run", code=code)
    assert run.to_end() == 1
    assert [x.output for x in run.all_of(local_run.Layer)] == ["2x8 float32", "2x16 float32"]
    assert run.ended.outcome is Outcome.FAILED
    assert "layer 1, Linear" in run.ended.message
    assert not run.all_of(local_run.Fleet)


def test_more_stages_than_layers_are_refused_before_any_agent_starts(tmp_path: Path) -> None:
    run = Run(job(tmp_path, pipelines=1, stages=99), tmp_path)
    assert run.to_end() == 1
    layers = len(run.all_of(local_run.Layer)) - 1
    assert layers > 0
    assert run.ended.outcome is Outcome.FAILED
    assert f"gives {layers} layers, fewer than spec.pipelines.stages 99" in run.ended.message
    assert f"lower it, or --stages, to {layers} at most" in run.ended.message
    assert not run.all_of(local_run.Fleet)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model": ModelSpec("nowhere:build")}, "cannot import 'nowhere'"),
        ({"model": ModelSpec("bamboo_agent.models.gpt:built")}, "has no 'built'"),
    ],
)
def test_what_cannot_be_built_is_refused(
    changed: dict[str, FactorySpec], message: str, tmp_path: Path
) -> None:
    run = Run(replace(job(tmp_path), **changed), tmp_path)  # type: ignore[arg-type]
    assert run.to_end() == 1
    assert message in run.ended.message


def damaged(folder: Path, statement: str, *, pipelines: int) -> tuple[JobSpec, Path, int]:
    """A job, its code, and the sample of step 7 that does this instead of being read."""
    code = written(
        folder / "code",
        f"""
        import os

        from bamboo_agent.datasets import text

        def build(**args):
            return Data(text.build(**args))

        class Data:
            def __init__(self, texts):
                self.texts = texts

            def __len__(self):
                return len(self.texts)

            def __getitem__(self, index):
                if index == BAD:
                    {statement}
                return self.texts[index]

        BAD = 0
        """,
    )
    spec = job(folder, pipelines=pipelines, stages=1)
    indices = sample_indices(
        seed=spec.seed,
        step=7,
        microbatch=0,
        microbatches=spec.training.microbatches,
        size=spec.training.micro_batch_size,
        samples=len(text.build(**spec.data.args)),
    )
    bad = f"BAD = {indices[0]}"
    (code / "mine.py").write_text((code / "mine.py").read_text().replace("BAD = 0", bad))
    spec = replace(
        spec,
        data=replace(spec.data, factory="mine:build"),
        redundancy=RedundancySpec(),
        checkpoint=replace(spec.checkpoint, every_steps=2),
    )
    return spec, code, indices[0]


@pytest.mark.parametrize("error", ["ValueError", "OSError"])  # of the code, and of a node perhaps
def test_a_sample_that_raises_in_mid_run_ends_it_with_the_sample(
    error: str, tmp_path: Path
) -> None:
    spec, code, bad = damaged(tmp_path, f'raise {error}("a torn record")', pipelines=2)
    run = Run(spec, tmp_path, code=code)
    assert run.to_end() == 1
    assert run.ended.outcome is Outcome.FAILED
    told = f"step 7, micro-batch 0: mine:build, sample {bad}: {error}: a torn record"
    assert told in run.ended.message
    assert "/step-0000000" in run.ended.checkpoint  # what is there stays
    assert len(run.all_of(local_run.Step)) >= 7


def test_a_sample_that_ends_two_processes_ends_the_run_with_all_steps(tmp_path: Path) -> None:
    """The third agent has the layers of the two."""
    spec, code, bad = damaged(tmp_path, "os._exit(3)", pipelines=3)
    run = Run(spec, tmp_path, code=code)
    assert run.to_end() == 1
    assert run.ended.outcome is Outcome.FAILED
    assert "UserCodeFailed: the worker ended with code 3, in F[" in run.ended.message
    assert f"m0 @7 reads sample {bad} of spec.data: code that it runs may not" in run.ended.message
    assert f"; it runs spec.data.factory {spec.data.factory}; " in run.ended.message
    assert "; 7 committed steps in the checkpoint of step 7: " in run.ended.message
    assert run.ended.checkpoint.endswith("/step-00000007")


def test_an_optimizer_that_raises_ends_the_run_with_what_is_lost_and_left(tmp_path: Path) -> None:
    code = written(
        tmp_path / "code",
        """
        import torch

        class Opt(torch.optim.Adam):
            def step(self, closure=None):
                if any(x["step"] == 60 for x in self.state.values()):
                    raise RuntimeError("boom")
                return super().step(closure)

        def build(params):
            return Opt(params)
        """,
    )
    spec = job(tmp_path, pipelines=1, stages=1, steps=80)
    spec = replace(
        spec,
        training=replace(spec.training, optimizer=FactorySpec("mine:build")),
        redundancy=RedundancySpec(),
        checkpoint=replace(spec.checkpoint, every_steps=25),
    )
    run = Run(spec, tmp_path, code=code)
    assert run.to_end() == 1
    message, folder = run.ended.message, run.ended.checkpoint
    assert "of step 60 by Opt" in message
    assert "boom" in message
    assert folder.endswith("/step-00000050")
    lost = run.all_of(local_run.Step)[-1].step + 1 - 50
    assert f"{lost} committed step" in message
    assert "since the checkpoint of step 50 are lost" in message
    assert (
        f"50 committed steps in the checkpoint of step 50, {folder}: spec.checkpoint.from"
        in message
    )


def test_agents_that_build_unequal_layers_end_the_run(tmp_path: Path) -> None:
    code = written(
        tmp_path / "code",
        """
        import os
        import torch
        from torch import nn
        from torch.nn.functional import cross_entropy
        from bamboo_agent.model import Model

        class Own(nn.Linear):
            def __init__(self):
                super().__init__(8, 2)
                nn.init.constant_(self.bias, len(os.environ.get("BAMBOO_AGENT", "")))
                nn.init.constant_(self.weight, int(os.environ.get("BAMBOO_AGENT", "-0")[-1]))

        def build():
            return Model([lambda: nn.Linear(8, 8), Own], cross_entropy)

        class Data:
            def __len__(self):
                return 64

            def __getitem__(self, index):
                return torch.ones(8), index % 2
        """,
    )
    spec = job(tmp_path / "run", pipelines=1)
    spec = replace(
        spec,
        model=ModelSpec("mine:build"),
        data=replace(spec.data, factory="mine:Data", args={}, validation=None),
    )
    run = Run(spec, tmp_path / "run", code=code)
    assert run.to_end() == 1
    assert run.ended.outcome is Outcome.FAILED
    assert "weights" in run.ended.message
    assert not run.all_of(local_run.Step)


FLOWING = """
import torch
from torch import nn
from torch.nn import functional
from bamboo_agent.model import Model

class Embed(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(32, 16)

    def forward(self, batch):
        hidden = self.table(batch["ids"])
        return {"hidden": hidden, "mask": batch["mask"], "past": None, "depth": 1}

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(16, 16)

    def forward(self, state):
        assert state["past"] is None
        hidden = state["hidden"] + torch.tanh(self.inner(state["hidden"]))
        hidden = hidden * state["mask"].unsqueeze(-1)
        return {**state, "hidden": hidden, "depth": state["depth"] + 1}

class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(16, 32)

    def forward(self, state):
        assert state["depth"] == 3, state["depth"]
        return (self.project(state["hidden"]), {"depth": state["depth"]})

def loss(output, target):
    logits, more = output
    assert more == {"depth": 3}
    return functional.cross_entropy(logits.flatten(0, 1), target.flatten())

def build():
    return Model([Embed, Block, Block, Head], loss)

class Data:
    def __len__(self):
        return 64

    def __getitem__(self, index):
        ids = torch.arange(6) * (index + 1) % 32
        return {"ids": ids, "length": 4 + index % 3}

    def collate(self, samples):
        ids = torch.stack([x["ids"] for x in samples])
        mask = torch.arange(6) < torch.tensor([[x["length"]] for x in samples])
        hidden = torch.where(torch.rand(ids.shape) < 0.3, 0, ids)
        return {"ids": hidden, "mask": mask, "labels": ids}
"""


def test_dicts_none_and_numbers_flow_and_a_data_set_collates(tmp_path: Path) -> None:
    """As library models do it: a mask beside the hidden state, dict samples, random masks."""
    code = written(tmp_path / "code", FLOWING)
    digests = set()
    for grid in ((2, 2), (1, 1)):
        folder = tmp_path / "x".join(map(str, grid))
        spec = job(folder, pipelines=grid[0], stages=grid[1], steps=4)
        spec = replace(
            spec,
            model=ModelSpec("mine:build"),
            data=replace(spec.data, factory="mine:Data", args={}, validation=None),
            training=replace(spec.training, validate_every=0),
        )
        run = Run(spec, folder, "--check", code=code)
        assert run.to_end() == 0, run.told
        assert [x.differs for x in run.all_of(local_run.Compared)] == [""]
        digests.add(run.ended.digest)
    assert len(digests) == 1
