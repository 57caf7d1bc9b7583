"""Code that ends a process is named by its factory, as the instruction tells it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bamboo_core.api.spec import (
    DataSpec,
    FactorySpec,
    JobSpec,
    ModelSpec,
    OptimizerSpec,
    PipelinesSpec,
    TrainingSpec,
    WorkerSpec,
)
from bamboo_core.evidence.culprits import culprit, meeting

REPAIR = "repair it: an update changes layers in place, so one that fails ends its agent"
SPEC = JobSpec(
    model=ModelSpec("mine.nets:build"),
    data=DataSpec("mine.data:train", validation=FactorySpec("mine.data:held_out"), workers=1),
    training=TrainingSpec(10, 8, 2, OptimizerSpec("mine.optim:Lion")),
    pipelines=PipelinesSpec(1, 1),
    worker=WorkerSpec("image"),
)


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("F[0:4] m3 @30 reads sample 697 of spec.data", "spec.data.factory mine.data:train"),
        ("F[0:4] m3 @30 reads data", "spec.data.factory mine.data:train"),
        ("F[3:4] m3 @30 reads data", "spec.data.factory mine.data:train"),  # its targets
        (
            "V[0:4] m3 @7 reads sample 41 of spec.data.validation",
            "spec.data.validation.factory mine.data:held_out",
        ),
        ("F[0:4] m3 @30", "spec.model.factory mine.nets:build, layers 0 to 3"),
        ("B[2:3] m0", "spec.model.factory mine.nets:build, layer 2"),
        ("F[2:3] m0 0:2 @4", "spec.model.factory mine.nets:build, layer 2"),
        (
            "F[0:4] m3 @30, layer 2 (Block)",
            "spec.model.factory mine.nets:build, layer 2 (Block)",
        ),
        ("V[2:4] m0 @7, the loss", "spec.model.factory mine.nets:build, the loss"),
        ("INIT[0:2]", "spec.model.factory mine.nets:build, layers 0 to 1"),
        ("UPDATE[0:2] 0:4 0:1 @9", f"spec.training.optimizer.factory mine.optim:Lion; {REPAIR}"),
        ("SAVE[0:2] @9", ""),  # it runs none of the user's code
        ("the end waits for storage", ""),
        ("", ""),
    ],
)
def test_a_place_names_a_factory(place: str, said: str) -> None:
    assert culprit(place, SPEC) == said


def test_a_schedule_runs_with_the_optimizer() -> None:
    optimizer = OptimizerSpec("torch.optim:SGD", schedule=FactorySpec("mine.rates:cosine"))
    spec = replace(SPEC, training=replace(SPEC.training, optimizer=optimizer))
    assert culprit("UPDATE[0:2] @9", spec) == (
        "spec.training.optimizer.factory torch.optim:SGD, or its schedule mine.rates:cosine;"
        f" {REPAIR}"
    )


def test_a_sample_is_the_same_for_a_reader_with_other_layers() -> None:
    one, other = (f"F[0:{n}] m3 @30 reads sample 697 of spec.data" for n in (1, 2))
    assert meeting(one) == meeting(other)
    assert meeting(one) != meeting("F[0:1] m3 @30 reads sample 698 of spec.data")
    assert meeting(one) != meeting("V[0:1] m3 @30 reads sample 697 of spec.data.validation")
    assert meeting("F[0:3] m1 @60") == meeting("F[2:4] m1 @60") != meeting("B[2:4] m1 @60")
    assert meeting("F[0:3] m1 @60") != meeting("F[0:3] m1 @61")
    assert meeting("odd") == "odd"


def test_a_layer_that_ends_a_process_of_each_pipeline_is_one_place() -> None:
    assert meeting("F[0:3] m0 @60, layer 2 (Block)") == meeting("F[0:3] m2 @60, layer 2 (Block)")


def test_the_layer_of_a_crash_does_not_count() -> None:
    """Damaged memory may end another process in another layer."""
    at = "F[0:3] m1 @60"
    assert meeting(f"{at}, layer 2 (Block)") == meeting(at) == meeting("F[2:4] m1 @60, the loss")
    assert meeting(f"{at}, layer 2 (Block)") != meeting("F[0:3] m1 @61, layer 2 (Block)")


def test_an_update_is_the_same_for_agents_with_other_layers_and_sums() -> None:
    assert meeting("UPDATE[0:2] 0:4 0:1 @9") == meeting("UPDATE[2:4] 0:3 0:1 @9")
    assert meeting("UPDATE[2:4] @9") == meeting("UPDATE[0:2] 0:4 0:1 @9")  # of a crash
    assert meeting("UPDATE[0:2] 0:4 0:1 @9") != meeting("UPDATE[0:2] 0:4 0:1 @10")
    assert meeting("UPDATE[0:2] 0:4 0:1") == meeting("UPDATE[2:4] 0:4 0:1") != ""


def test_a_sample_that_the_agent_reads_itself_has_a_remedy_beside_its_repair() -> None:
    spec = replace(SPEC, data=replace(SPEC.data, workers=0))
    assert culprit("F[0:4] m3 @30 reads sample 697 of spec.data", spec) == (
        "spec.data.factory mine.data:train; with spec.data.workers: 1 another process reads"
        " samples, and its end loses no step"
    )
