"""The table of cases: every report and review of code that was silently wrong, and its siblings."""

from __future__ import annotations

import re
from typing import Any

from bamboo_sim.user_code.case import Case, Equal, Expected, Refused, Unlike


def _masked(name: str, source: str, expected: Expected, drawn: str, where: str) -> Case:
    return Case(name, source, expected, "models:masked", {"source": drawn, "where": where})


_B, _LATE, _WORKS = "kind B", "review-models 2", "review-models, what works"
_AGAIN = "again|each call|every call|twice|differ"
"""A layer that is built a second time is another one."""
_SHARED = "share|same|again|new module"
WEIGHTS = (
    Case("cut", "review-models 1.1", Refused(("layer 0", _SHARED)), "models:cut"),
    Case(
        "cut_in_slices", "review-models 1.1", Refused(("layer 0", _SHARED)), "models:cut_in_slices"
    ),
    Case("cut_and_copied", "review-models 1.1", Equal(), "models:cut_and_copied"),
    Case("pretrained", "review-models, what works", Equal(), "models:pretrained"),
    Case("cached", "review-models 1.1", Refused(("layer 1", _SHARED)), "models:cached"),
    Case("tied", "review-models 1.2", Refused(("layer 1", "weight", _SHARED)), "models:tied"),
    Case(
        "tied_by_storage",
        "review-models 1.2",
        Refused(("layer 1", "weight", _SHARED)),
        "models:tied_by_storage",
    ),
    Case(
        "tied_by_turns",
        "review-models 1.2",
        Refused(("layer [13]", _SHARED)),
        "models:tied_by_turns",
    ),
    Case(
        "tied_buffer",
        _B,
        Refused(("layer [13]", "mask", _SHARED), or_equal=True),
        "models:tied_buffer",
    ),
    Case("two_names", "R10, review-models 1.2", Equal(), "models:two_names"),
    _masked("mask_of_torch", "R14", Equal(), "torch", "build"),
    _masked("mask_of_numpy", "R14", Equal(), "numpy", "build"),
    _masked("mask_of_random", "R14", Equal(), "random", "build"),
    _masked("mask_of_numpy_in_layer", "R14", Equal(), "numpy", "layer"),
    _masked("mask_of_random_in_layer", "R14", Equal(), "random", "layer"),
    _masked("mask_at_import_of_torch", "R14", Equal(), "import_torch", "build"),
    _masked("mask_at_import_of_numpy", "R14", Equal(), "import_numpy", "build"),
    _masked("mask_at_import_unseeded", "R14", Unlike(), "import_unseeded", "build"),
    _masked("mask_unseeded", "R14", Unlike(), "default_rng", "build"),
    _masked("mask_of_urandom", "R14", Unlike(), "urandom", "build"),
    _masked(
        "mask_unseeded_in_layer",
        "R14",
        Refused(("layer 1", "mask", _AGAIN)),
        "default_rng",
        "layer",
    ),
    _masked(
        "mask_of_urandom_in_layer", "R14", Refused(("layer 1", "mask", _AGAIN)), "urandom", "layer"
    ),
    _masked("mask_of_time_in_layer", "R14", Refused(("layer 1", "mask", _AGAIN)), "time", "layer"),
    _masked(
        "own_generator_in_layer",
        "review-models 1.1",
        Refused(("layer 1", "mask", _AGAIN)),
        "generator",
        "layer",
    ),
    _masked("fixed_generator_in_layer", "review-models 1.1", Equal(), "fixed", "layer"),
    Case(
        "mask_of_hashes",
        "R15",
        Equal(),
        "models:masked",
        {"source": "hash", "where": "layer"},
        has_own_interpreters=True,
    ),
    Case(
        "counts_calls",
        "review-models 1.1",
        Refused(("layer 1", "bias", _AGAIN)),
        "models:counts_calls",
        {"harmless": False},
    ),
    Case(
        "counts_calls_harmless",
        "review-models 1.1",
        Equal(),
        "models:counts_calls",
        {"harmless": True},
    ),
)
SETTINGS = tuple(
    Case(
        f"sets_{x}",
        "R14, kind C",
        Refused((x,), or_equal=True),
        "models:with_setting",
        {"setting": x},
    )
    for x in ("threads", "dtype", "device", "algorithms", "grad", "denormals")
)
_KEPT = {"kept": "some", "ignored": -100}


def _padded(
    name: str, expected: Expected, kept: str, ignored: int = -100, *, constant: bool = False
) -> Case:
    return Case(
        name,
        "review-models 1.4",
        expected,
        "data_sets:tagger",
        {"ignored": ignored, "constant": constant},
        "data_sets:Sentences",
        {"kept": kept, "ignored": ignored},
    )


_PARTS = "two parts|tuple|pair"
_MEANS = ("mean", "count|divide|constant")
DATA = (
    _padded("padding", Refused(_MEANS), "some"),
    _padded("padding_with_zero", Refused(_MEANS), "some", 0),
    _padded("padding_without_target", Refused(("not a number|NaN", "target")), "none"),
    _padded("padding_over_constant", Equal(), "some", constant=True),
    _padded("padding_without_target_over_constant", Equal(), "none", constant=True),
    _padded("padding_half", Equal(), "half"),
    _padded("padding_none", Equal(), "all"),
    Case(
        "dicts",
        "review-models 2",
        Refused(("sample", "dict", _PARTS)),
        data="data_sets:Dicts",
    ),
    Case(
        "one_tensor",
        "review-models 1.6",
        Refused(("sample", _PARTS)),
        data="data_sets:Inputs",
    ),
    Case(
        "ragged",
        "review-models 2",
        Refused(("sample", "shape|length|size", "pad")),
        data="data_sets:Ragged",
    ),
    Case(
        "counting_reads", "kind C", Refused(("sample", "differs when")), data="data_sets:Counting"
    ),
    Case("unreadable", "R18", Refused(("sample", "no image in caf")), data="data_sets:Unreadable"),
    Case("arrays", "review-models 1.6", Equal(), data="data_sets:Arrays"),
    Case("augmented", "kind C", Equal(), data="data_sets:Augmented"),
    Case("split", "R15", Equal(), data="data_sets:Split"),
    Case("vocabulary", "R15", Equal(), data="data_sets:Vocabulary", has_own_interpreters=True),
    Case("unseeded_samples", "R23", Unlike(), data="data_sets:Unseeded"),
    Case(
        "long_arrays",
        "R23, review-models 1.6",
        Unlike(),
        "data_sets:long_model",
        data="data_sets:LongArrays",
    ),
)


def _layer(kind: str, source: str, expected: Expected) -> Case:
    return Case(_snake(kind), source, expected, "forwards:layer", {"kind": kind})


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def _model(name: str, source: str, expected: Expected, **args: Any) -> Case:
    factory = args.pop("factory", name)
    return Case(name, source, expected, f"forwards:{factory}", args)


_PLACE = "in place|in-place|inplace"
_COPY = r"clone|inplace=False|copy|x \+ 1|new tensor"
FORWARDS = (
    _layer("OwnGenerator", _B, Refused(("layer 1", "generator"))),
    _layer("NumpyNoise", _B, Refused(("layer 1", "numpy|differ"), or_equal=True)),
    _layer("Average", _B, Refused(("layer 1", "average"))),
    _layer("counter", _B, Refused(("layer 1", "calls"))),
    _layer("counter_of_third", _B, Refused(("layer 1", "calls"))),
    _layer("CallsInside", _B, Refused(("layer 1", "seen"))),
    _layer("GlobalCalls", _B, Refused(("layer 1",))),
    _layer("ClassCalls", _B, Refused(("layer 1",))),
    _layer("Last", _B, Refused(("layer 1", "last"), or_equal=True)),
    _layer("Lazy", _B, Equal()),
    _layer("FrozenNorm", _WORKS, Equal()),
    _layer("AddsInPlace", _LATE, Refused(("layer 1", _PLACE, _COPY), or_equal=True)),
    _layer("ReluInPlace", _LATE, Refused(("layer 1", _PLACE, _COPY), or_equal=True)),
    _model("inplace_relu", _LATE, Refused(("layer 2", _PLACE, _COPY), or_equal=True)),
    _model(
        "returns_dict",
        _LATE,
        Refused(("layer 2, Tanh", "not dict")),
        factory="returning",
        kind="dict",
    ),
    _model(
        "returns_none",
        _LATE,
        Refused(("layer 2, Tanh", "but 3 were given")),
        factory="returning",
        kind="none",
    ),
    _model(
        "returns_output",
        _LATE,
        Refused(("layer 1", "ModelOutput", "tuple")),
        factory="returning",
        kind="model_output",
    ),
    _model(
        "returns_list",
        _LATE,
        Refused(("layer 1", "list", "tuple"), or_equal=True),
        factory="returning",
        kind="list",
    ),
    _model(
        "returns_number",
        _LATE,
        Refused(("layer 2, Tanh", "but 3 were given")),
        factory="returning",
        kind="pair",
    ),
    _layer("Once", "issue 33, donated buffers", Equal()),
    _layer("Hooked", _B, Equal()),
    _layer("HookedAfter", _B, Refused(("layer 1", "hook"), or_equal=True)),
    _layer("CountingHook", _B, Refused(("layer 1", "backwards"))),
    _layer("BackwardBuffer", _B, Refused(("layer 1", "held|backwards"))),
    _layer("checkpointed", _WORKS, Equal()),
    _layer("reentrant", _WORKS, Refused(("layer 1", "reentrant"), or_equal=True)),
    _layer("Temperature", "R11", Equal()),
    _layer("ChannelsLast", _B, Equal()),
    _layer("Unused", _WORKS, Equal()),
    _model("adapters", _WORKS, Equal()),
    _model("dropout", _WORKS, Equal()),
    _model("batch_norm", _LATE, Equal(), tracked=True),
    _model("batch_norm_untracked", _LATE, Equal(), factory="batch_norm", tracked=False),
    _model("spectral", _B, Refused(("layer 1", "_u|buffer"))),
    _model("weight_norm", _B, Equal()),
    _model("hooked_weight_norm", _B, Refused(("layer 1", "weight"), or_equal=True)),
    _model("lazy_linear", _B, Refused(("layer 1",), or_equal=True)),
    *(
        _model(f"buffer_{x}", "R13, kind B", Equal(), factory="with_buffer", dtype=x)
        for x in ("bool", "int8", "float64", "bfloat16")
    ),
    *(
        _model(
            f"buffer_{x}",
            "R13, kind B",
            Refused(("layer 1", "held", x), or_equal=x != "complex128"),
            factory="with_buffer",
            dtype=x,
        )
        for x in ("complex64", "complex128", "float8")
    ),
    _model(
        "buffer_not_persistent",
        _B,
        Equal(),
        factory="with_buffer",
        dtype="float64",
        persistent=False,
    ),
    *(
        _model(f"parameters_{x}", _WORKS, Equal(), factory="with_parameters", dtype=x)
        for x in ("bfloat16", "float64")
    ),
)


def _optimizer(name: str, source: str, expected: Expected, factory: str = "", **args: Any) -> Case:
    factory = f"optimizers:{factory or name}"
    return Case(name, source, expected, optimizer=factory, optimizer_args=args)


def _kept(kind: str, expected: Expected) -> Case:
    return _optimizer(f"keeps_{kind}", "R13, kind B", expected, "Keeps", kind=kind)


OPTIMIZERS = (
    _optimizer("group_counter", "R9, review-models 1.3", Equal(), "GroupCounter"),
    _optimizer("group_counter_of_third", "R9, review-models 1.3", Equal(), "GroupCounter", every=3),
    _optimizer("group_tensor", "R9, review-models 1.3", Equal(), "GroupTensor"),
    _optimizer("own_rate", "R9, review-models 1.3", Equal(), "OwnRate"),
    _optimizer("prodigy", _B, Equal(), "Prodigy"),
    _optimizer("schedule_free", _B, Equal(), "ScheduleFree"),
    _optimizer("attribute_counter", _B, Refused(("taken",)), "AttributeCounter"),
    _optimizer("attribute_counter_of_third", _B, Refused(("taken",)), "AttributeCounter", every=3),
    _optimizer("running_norm", _B, Refused(("norm",)), "RunningNorm"),
    _optimizer("lookahead", _B, Refused(("inner|optimizer",), or_equal=True), "Lookahead"),
    _optimizer("closure_counter", _B, Refused(("optimizer|update",))),
    _optimizer("global_counter", _B, Refused(("optimizer|update",)), "GlobalCounter"),
    _optimizer("class_counter", _B, Refused(("optimizer|update",)), "ClassCounter"),
    _optimizer(
        "noise_of_torch",
        _B,
        Refused(("optimizer|update",), or_equal=True),
        "Noise",
        origin="torch",
    ),
    _optimizer(
        "noise_of_numpy",
        _B,
        Refused(("optimizer|update",), or_equal=True),
        "Noise",
        origin="numpy",
    ),
    _optimizer("sharpness", _B, Refused(("closure",)), "Sharpness"),
    _optimizer("changes_a_parameter", _B, Refused(("optimizer|update",))),
    _optimizer("global_state", _B, Equal(), "GlobalState"),
    _optimizer("groups", "review-models 1.5", Equal(like="optimizers:by_hand")),
    _optimizer("impure_rate", "R30", Refused(("rate",))),
    _optimizer("rate_of_other_options", _B, Equal()),
    _optimizer("scheduled", _LATE, Refused(("LambdaLR|scheduler", "rate"), or_equal=True)),
    _optimizer("scheduler", _LATE, Refused(("LambdaLR|scheduler", "rate"))),
    _optimizer("lr_tensor", "R9, review-models 1.3", Equal(), "adamw", tensor_lr=True),
    _optimizer("foreach", _WORKS, Equal(), "adamw", foreach=True),
    _optimizer("fused", _WORKS, Equal(), "adamw", fused=True),
    _optimizer("amsgrad", "R35", Equal(), "adamw", amsgrad=True, maximize=False),
    *(
        _kept(x, Equal())
        for x in ("list", "bool", "int8", "float64", "bfloat16", "transposed", "text", "none")
    ),
    *(_kept(x, Refused((x, "kept"), or_equal=True)) for x in ("dict", "tuple", "inf")),
    *(_kept(x, Refused(("kept",))) for x in ("dtype", "numpy_scalar", "numpy_array", "generator")),
    _kept("complex", Refused(("kept", "complex128"))),
)
_RATES: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9},
    "Adam": {},
    "AdamW": {},
    "NAdam": {},
    "RAdam": {},
    "Adamax": {},
    "Adadelta": {},
    "Adagrad": {},
    "ASGD": {"t0": 2.0},
    "RMSprop": {"momentum": 0.5, "centered": True},
    "Rprop": {},
    "Adafactor": {},
    "Muon": {},
}
TORCH = (
    *(
        Case(
            x.lower(),
            "R35",
            Equal(),
            model_args={"bias": x != "Muon"},
            optimizer=f"torch.optim:{x}",
            optimizer_args={"lr": 0.01, **more},
        )
        for x, more in _RATES.items()
    ),
    Case(
        "lbfgs",
        "R35, review-models 2",
        Refused(("LBFGS", "closure")),
        optimizer="torch.optim:LBFGS",
        optimizer_args={},
    ),
    Case(
        "sparse_adam",
        "R35",
        Refused(("sparse",), or_equal=True),
        "forwards:sparse",
        optimizer="torch.optim:SparseAdam",
    ),
)
CASES = (*WEIGHTS, *SETTINGS, *DATA, *FORWARDS, *OPTIMIZERS, *TORCH)
BY_NAME = {case.name: case for case in CASES}
