"""What users name in a spec: what is accepted, and one essential line for everything else."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from bamboo_agent.compute.layers import LayerBuilder
from bamboo_agent.compute.optim import adamw, optimizer_factory
from bamboo_agent.data.batches import Data, DataTooSmallError, SampleError
from bamboo_agent.model import FactoryError, Model
from bamboo_agent.setup.factories import build_setup
from bamboo_agent.setup.fingerprint import fingerprint
from bamboo_agent.user_code import build_model
from bamboo_core.api.reasons import Reason
from bamboo_core.api.spec import DataSpec, FactorySpec, ModelSpec, OptimizerSpec
from bamboo_core.model.ids import AgentId
from bamboo_core.protection import shapes
from bamboo_core.protocol.messages import Failure
from bamboo_sim.workers import plans
from bamboo_sim.workers.jobs import tiny_gpt
from bamboo_sim.workers.process_fleet import ProcessFleet

CPU = torch.device("cpu")
AGENT = AgentId("a")


def broken_model():
    raise RuntimeError("no weights in the cupboard\nsecond line")


def counting_norm():
    return nn.InstanceNorm1d(2, track_running_stats=True)


def linear(inputs, outputs):
    return lambda: nn.Linear(inputs, outputs)


def squares(output, target):
    return (output - target).square().mean()


class Named(nn.Linear):
    def __init__(self):
        super().__init__(2, 2)

    def forward(self, x):
        return {"x": super().forward(x)}


MODELS = {
    "pictures": lambda: Model([lambda: nn.Conv2d(1, 1, 3)], squares),
    "raises": broken_model,
    "returns_none": lambda: None,
    "has_no_layers": lambda: Model([], squares),
    "has_modules": lambda: Model([linear(2, 2), nn.Linear(2, 2)], squares),
    "layer_raises": lambda: Model([linear(2, 2), broken_model], squares),
    "layer_is_none": lambda: Model([linear(2, 2), lambda: None], squares),
    "shapes_differ": lambda: Model([linear(2, 3), linear(2, 2)], squares),
    "counts": lambda: Model(
        [linear(2, 2), lambda: nn.InstanceNorm1d(2, track_running_stats=True)], squares
    ),
    "loss_raises": lambda: Model([linear(2, 2)], lambda a, b: [][0]),
    "doubles": lambda: Model([lambda: nn.Linear(2, 2).double()], squares),
    "loss_is_no_scalar": lambda: Model([linear(2, 2)], lambda a, b: a - b),
    "loss_is_nothing": lambda: Model([linear(2, 2)], lambda a, b: None),
    "layer_is_text": lambda: Model([lambda: "x"], squares),
    "size_is_text": lambda: Model([linear(2, 2), lambda: nn.Linear(2, "2")], squares),
    "gives_dict": lambda: Model([Named, linear(2, 2)], squares),
    "fine": lambda: Model([linear(2, 2), nn.ReLU, linear(2, 1)], squares),
    "classifies": lambda: Model([linear(2, 2)], classes),
}


class Points:
    def __len__(self):
        return 100

    def __getitem__(self, index):
        return (torch.full((2,), float(index)), 1), index / 100


class Pairs(Points):
    def __getitem__(self, index):
        return torch.full((2,), float(index)), torch.tensor([index / 100])


class Scalars(Points):
    def __getitem__(self, index):
        return torch.full((2,), float(index)), torch.tensor(index / 100)


class Unreadable(Pairs):
    """Fails from one sample on: 0 for always, 100 (the length) for never."""

    def __init__(self, first=0):
        self.first = first

    def __getitem__(self, index):
        if index >= self.first:
            raise ValueError(f"no text in record {index}\nsecond line")
        return super().__getitem__(index)


class Ragged(Pairs):
    def __getitem__(self, index):
        return torch.zeros(index + 1), torch.zeros(1)


class Swapped(Pairs):
    """The label comes first."""

    def __getitem__(self, index):
        return torch.tensor(index % 2), torch.zeros(1, 4, 4)


class Labels(Pairs):
    """The usual value for "no target" stands in one sample, which is not among the first."""

    def __init__(self, masked):
        self.masked = masked

    def __getitem__(self, index):
        label = -100 if index == self.masked else index % 2
        return super().__getitem__(index)[0], torch.tensor(label)


class Ids(Points):
    def __getitem__(self, index):
        tokens = torch.arange(8) + index
        return tokens, tokens


class Doubled(Pairs):
    def __getitem__(self, index):
        return super().__getitem__(index)[0].double(), torch.zeros(1)


def classes(output, target):
    return functional.cross_entropy(output, target)


class Lengthless(Pairs):
    def __len__(self):
        raise OSError("no index file")


@pytest.fixture(autouse=True)
def module(monkeypatch):
    made = ModuleType("users_code")
    vars(made).update(MODELS, points=Points, pairs=Pairs, nothing=lambda: None, number=3)
    vars(made).update(scalars=Scalars, unreadable=Unreadable, ragged=Ragged)
    vars(made).update(
        lengthless=Lengthless, labels=Labels, ids=Ids, doubled=Doubled, swapped=Swapped
    )
    monkeypatch.setitem(sys.modules, "users_code", made)


def job(model="fine", data="pairs", **changes):
    training = replace(tiny_gpt().training, validate_every=0)
    return replace(
        tiny_gpt(),
        model=ModelSpec(f"users_code:{model}"),
        data=DataSpec(f"users_code:{data}"),
        training=training,
        **changes,
    )


@pytest.mark.parametrize(
    ("model", "complaint"),
    [
        ("raises", "^spec.model.factory: users_code:raises raised RuntimeError: no weights"),
        ("returns_none", "returned a NoneType without layers and loss; return a Model"),
        ("has_no_layers", "layers must be a non-empty list"),
        ("has_modules", r"layers\[1\] is a Linear, which all .* such as lambda: Linear\("),
        ("absent", "spec.model.factory: module 'users_code' has no 'absent'; name a function"),
        ("returns_nome", "has no 'returns_nome'; near names are returns_none"),
        ("number", "'users_code:number' is not a function"),
        (
            "layer_raises",
            r"^users_code:layer_raises: layer 1 \(test_factories.py, line 37\): RuntimeError: no",
        ),
        (
            "layer_is_none",
            "layer 1 is a NoneType, not an nn.Module: its function returns nothing; return the",
        ),
        ("layer_is_text", "layer 0 is a str, not an nn.Module: return one from its function"),
        (
            "size_is_text",
            r"size_is_text: layer 1, Linear \(test_factories.py, line \d+\): TypeError: empty\(\)",
        ),
        (
            "gives_dict",
            'layer 1, Linear: .* not dict; layer 0 gives a dict with the keys "x": 2x2 float32: '
            "make layer 1 take what layer 0 gives",
        ),
        ("loss_is_nothing", "the loss returns nothing: return its value, a scalar tensor"),
        (
            "shapes_differ",
            "layer 1, Linear: RuntimeError: .*; layer 0 gives 2x3 float32: make layer 1 take what",
        ),
        (
            "loss_raises",
            "^users_code:loss_raises: the loss raised IndexError: .*; the model gives 2x2 flo",
        ),
        ("doubles", "layer 0, Linear: .*; the data set gives 2x2 float32: make layer 0"),
        (
            "counts",
            "layer 1, InstanceNorm1d: its forward changes buffer/running_mean",
        ),
        ("loss_is_no_scalar", "^users_code:loss_is_no_scalar: loss must be .* of float32"),
    ],
)
def test_a_bad_model_is_told_in_one_line(model, complaint):
    with pytest.raises(FactoryError, match=complaint):
        build_setup(AGENT, job(model), CPU)


def test_a_layer_that_gets_the_labels_is_told_that_they_may_be_swapped():
    swapped = job("pictures", data="swapped")
    with pytest.raises(FactoryError, match=r"2 int64; .* input and target may be swapped"):
        build_setup(AGENT, swapped, CPU)


def test_data_of_numpys_own_dtype_are_refused_with_the_remedy():
    with pytest.raises(
        FactoryError, match=r"the data set gives 2x2 float64: .*astype\(numpy.float32"
    ):
        build_setup(AGENT, job(data="doubled"), CPU)


CLASSES = "it takes numbers of classes: give an integer as the target of a sample, as int(label)"


@pytest.mark.parametrize(
    ("target", "words", "remedy"),
    [
        (torch.zeros(3, 4, 5), "2x3x4x5 float32", f"{CLASSES}; images stand there: input and"),
        (torch.zeros(4, 5), "2x4x5 float32", f"{CLASSES}; images stand there: input and target"),
        (torch.tensor(1.0), "2 float32", f"{CLASSES}$"),
        (torch.zeros(3), "2x3 float32", f"{CLASSES}$"),
        (torch.zeros(3, 4, 5).long(), "2x3x4x5 int64", "give it what it takes$"),
    ],
    ids=["image", "grey", "number", "vector", "integers"],
)
def test_targets_that_are_no_classes_are_named_with_the_remedy(monkeypatch, target, words, remedy):
    class Targets(Pairs):
        def __getitem__(self, index):
            return super().__getitem__(index)[0], target

    monkeypatch.setattr(sys.modules["users_code"], "targets", Targets, raising=False)
    with pytest.raises(FactoryError) as refused:
        build_setup(AGENT, job("classifies", "targets"), CPU)
    text = str(refused.value)
    assert re.search(
        r"the loss raised RuntimeError: .*; the model gives 2x2 float32, and the targets of"
        rf" spec\.data \(users_code:targets, samples \d+, \d+\) are {words}: ",
        text,
        re.DOTALL,
    )
    assert re.search(remedy.replace("(", r"\(").replace(")", r"\)"), text)


@pytest.mark.parametrize("where", ["data", "validation"])
def test_data_that_the_loss_of_a_library_would_take_wrongly_is_refused(tmp_path, where):
    np.arange(400, dtype=np.uint16).tofile(tmp_path / "tokens.bin")
    config = {"model_type": "gpt2", "n_layer": 1, "n_head": 1, "n_embd": 8, "vocab_size": 400}
    tokens = ("bamboo_agent.datasets.tokens:build", {"path": str(tmp_path / "*"), "sequence": 8})
    data = DataSpec(*tokens) if where == "data" else DataSpec("users_code:ids")
    data = replace(data, validation=FactorySpec(*tokens))
    spec = replace(
        job(), model=ModelSpec("bamboo_agent.models.transformers:build", {"config": config})
    )
    with pytest.raises(FactoryError, match=r"with bamboo_agent\.datasets\.tokens:build: the label"):
        build_setup(AGENT, replace(spec, data=data), CPU)


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        ({"headz": 4}, "spec.model.args.headz: is not known; the fields of spec.model.args are"),
        ({"heads": 0}, "spec.model.args.heads: is 0; it must be an integer from 1 to"),
        ({"dropout": 2}, "spec.model.args.dropout: is 2; it must be a number from 0 to 1"),
        ({"width": 10, "heads": 4}, "spec.model.args.width: 10 is not divisible by heads 4"),
    ],
)
def test_a_wrong_argument_of_the_built_in_model_is_told_in_one_line(args, complaint):
    with pytest.raises(FactoryError, match=f"raised ValueError: {complaint}"):
        build_model(FactorySpec("bamboo_agent.models.gpt:build", args), seed=1)


def test_the_built_in_model_has_the_layers_that_its_shape_has():
    spec = replace(tiny_gpt(), model=ModelSpec(shapes.GPT, {"layers": 3}))
    shape = shapes.shape_of(spec)
    assert len(build_model(spec.model, seed=spec.seed).layers) == shape.layer_count == 5
    assert len(shapes.layers(shape, samples=1)) == 5


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("no colon", "'no colon' is not of the form module:function"),
        ("nosuchmodule:f", "cannot import 'nosuchmodule'"),
    ],
)
def test_a_bad_name_is_told_in_one_line(name, complaint):
    with pytest.raises(FactoryError, match=complaint):
        build_model(FactorySpec(name), seed=1)


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("def build(:", "cannot import 'users_file': SyntaxError: invalid syntax"),
        (
            "raise RuntimeError('no licence')",
            "cannot import 'users_file': RuntimeError: no licence",
        ),
        (
            "import sys; sys.stdin.nothing",
            "cannot import 'users_file': AttributeError: .*'nothing'",
        ),
        ("import sys; sys.exit(0)", "cannot import 'users_file': SystemExit: 0"),
        ("import nosuchthing", "cannot import 'users_file': No module named 'nosuchthing'"),
        ("", "module 'users_file' has no 'build'"),
    ],
)
def test_a_module_that_fails_on_import_is_told_in_one_line(
    tmp_path, monkeypatch, source, complaint
):
    (tmp_path / "users_file.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "users_file", raising=False)
    with pytest.raises(FactoryError, match=complaint):
        build_model(FactorySpec("users_file:build"), seed=1)


def test_a_data_set_that_is_none_is_told_in_one_line():
    with pytest.raises(FactoryError, match="returned a NoneType, not a data set"):
        Data(job(data="nothing"), CPU)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ("unreadable", r"users_code:unreadable, sample \d+: ValueError: no text in record"),
        ("ragged", r"users_code:ragged, samples \d+ and \d+: the input is .* pad or crop them"),
        ("lengthless", "len.. of what users_code:lengthless returned: OSError: no index file"),
    ],
)
def test_a_data_set_that_fails_is_told_in_one_line(data, complaint):
    with pytest.raises(FactoryError, match=complaint):
        build_setup(AGENT, job(data=data), CPU)


def test_a_validation_set_that_fails_is_told_before_the_first_step():
    validation = FactorySpec("users_code:unreadable")
    spec = replace(job(), data=DataSpec("users_code:pairs", validation=validation))
    with pytest.raises(FactoryError, match="users_code:unreadable, sample 0: ValueError"):
        build_setup(AGENT, spec, CPU)


def test_a_sample_that_fails_in_the_fingerprint_is_told_in_one_line():
    validation = FactorySpec("users_code:unreadable", {"first": 50})
    spec = replace(job(), data=DataSpec("users_code:pairs", validation=validation))
    built = build_setup(AGENT, spec, CPU)
    with pytest.raises(FactoryError, match="users_code:unreadable, sample 50: ValueError: no text"):
        fingerprint(spec, *built)


def test_a_sample_that_fails_later_is_not_the_job_s_end():
    """It may be a disk of this node: the job tries again, as often as its backoff limit allows."""
    validation = FactorySpec("users_code:unreadable", {"first": 2})
    spec = replace(job(), data=DataSpec("users_code:pairs", validation=validation))
    setup, _ = build_setup(AGENT, spec, CPU)
    with pytest.raises(SampleError, match="users_code:unreadable, sample 2: ValueError: no text"):
        setup.data.validation(1)


def test_a_masked_target_that_is_read_late_ends_the_job_with_the_remedy():
    """The probe has seen that the loss is a mean over what is not masked. Other numbers of targets
    than in the first micro-batch would make a mean of means of it."""
    known = Data(job("classifies", data="pairs"), CPU).indices(0, 5)[0]
    spec = job("classifies")
    spec = replace(spec, data=DataSpec("users_code:labels", {"masked": known}))
    setup, profile = build_setup(AGENT, spec, CPU)
    assert profile.loss.ignored == (-100, None)
    setup.data.training(0, 4)
    with pytest.raises(FactoryError, match=r"micro-batch 5 of step 0 .*1 of 2"):
        setup.data.training(0, 5)


def test_samples_may_hold_tensors_without_dimensions():
    spec = job(data="scalars")
    data = build_setup(AGENT, spec, CPU)[0].data
    assert data.training(0, 0)[1].shape == (2,)
    assert data.fingerprint() == Data(spec, CPU).fingerprint()


def test_a_data_set_that_is_too_small_is_told_with_both_numbers():
    big = replace(tiny_gpt().training, global_batch_size=200)
    with pytest.raises(DataTooSmallError, match="gives 100 samples, fewer than globalBatchSize 20"):
        Data(replace(job(), training=big), CPU)
    single = replace(tiny_gpt().training, global_batch_size=100, micro_batch_size=50)
    tiny = {"limit_bytes": 900, "split": "validation"}
    validation = FactorySpec("bamboo_agent.datasets.text:build", tiny)
    few = DataSpec("users_code:pairs", validation=validation)
    with pytest.raises(DataTooSmallError, match="validation set has 2 samples"):
        Data(replace(job(), training=single, data=few), CPU)


def test_a_model_without_bamboo_in_it_is_accepted():
    setup, profile = build_setup(AGENT, job(), CPU)
    assert setup.sizes == (6, 0, 3)
    assert [c.output_bytes for c in profile.costs] == [16, 16, 8]
    assert profile.costs[0].parameter_bytes == 24


def test_inputs_may_be_tuples_and_targets_numbers():
    data = Data(job(data="points"), CPU)
    (x, ones), target = data.training(0, 0)
    assert x.shape == (2, 2)
    assert ones.tolist() == [1, 1]
    assert target.tolist() == pytest.approx([i / 100 for i in data.indices(0, 0)])


def test_the_weights_of_a_layer_depend_neither_on_the_agent_nor_on_earlier_draws():
    setup, _ = build_setup(AGENT, job(), CPU)
    first = setup.builder.build(2).module.weight
    torch.rand(100)
    again = LayerBuilder(setup.model, lambda _: None, seed=7, device=CPU).build(2)
    other = LayerBuilder(setup.model, lambda _: None, seed=8, device=CPU).build(2)
    assert torch.equal(first, again.module.weight)
    assert not torch.equal(first, other.module.weight)


@pytest.mark.parametrize(
    ("factory", "args", "complaint"),
    [
        (
            "torch.optim:SGD",
            {"lrr": 1},
            "spec.training.optimizer.args: torch.optim:SGD raised TypeError: .* 'lrr'; its"
            " arguments are lr, momentum, ",
        ),
        (
            "torch.optim:SGD",
            {"lr": "fast"},
            "spec.training.optimizer.args: torch.optim:SGD raised TypeError: ",
        ),
        ("builtins:list", {}, "returned a list, not a torch optimizer"),
        ("torch.optim:Nothing", {}, "has no 'Nothing'"),
    ],
)
def test_a_bad_optimizer_is_told_in_one_line(factory, args, complaint):
    with pytest.raises(FactoryError, match=complaint):
        optimizer_factory(OptimizerSpec(factory, args), seed=1)([nn.Parameter(torch.zeros(1))])


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        ({"warmup": 1}, "raised TypeError: .*'warmup'; its arguments are warmup_steps"),
        ({"warmup_steps": "10"}, "raised ValueError: warmup_steps is '10'"),
    ],
)
def test_a_wrong_argument_of_a_schedule_is_told_with_its_field_and_no_layer(args, complaint):
    schedule = FactorySpec("bamboo_agent.schedules:constant", args)
    with pytest.raises(FactoryError, match=f"^spec.training.optimizer.schedule: .*{complaint}"):
        optimizer_factory(OptimizerSpec("torch.optim:SGD", schedule=schedule), seed=1)


def test_the_learning_rate_may_follow_the_step():
    _, rate = adamw([nn.Parameter(torch.zeros(1))], lr=1.0, warmup_steps=4, total_steps=8)
    assert [rate(step) for step in (0, 3, 4, 6, 8, 9)] == [0.25, 1.0, 1.0, 0.5, 0.0, 0.0]
    _, constant = adamw([nn.Parameter(torch.zeros(1))], lr=0.5)
    assert constant(1000) == 0.5


@pytest.mark.parametrize(
    ("factory", "args", "failure"),
    [
        (
            "bamboo_agent.models.gpt:build",
            {"width": 5},
            Failure(
                str(Reason.USER_CODE_FAILED),
                "spec.model.factory: bamboo_agent.models.gpt:build raised ValueError:"
                " spec.model.args.width: 5 is not divisible by heads 4; set a multiple of it",
                user_error=True,
                exit_code=2,
            ),
        ),
        (
            "builtins:open",
            {"file": "/nosuch/index"},
            Failure(
                "SetUpFailed",
                "spec.model.factory: builtins:open raised FileNotFoundError: [Errno 2] No such file"
                " or directory: '/nosuch/index'",
                user_error=False,
                exit_code=1,
            ),
        ),
    ],
    ids=["the user's code", "this node's mount"],
)
def test_a_worker_says_why_it_ends_and_whose_fault_it_is(factory, args, failure):
    fleet = ProcessFleet(replace(tiny_gpt(), model=ModelSpec(factory, args)), plans.names(1))
    try:
        fleet.wait(lambda: bool(fleet.messages))
        assert [message for _, message in fleet.messages] == [failure]
        (process,) = fleet.processes.values()
        process.join(20)
        assert process.exitcode == failure.exit_code
    finally:
        fleet.close()
