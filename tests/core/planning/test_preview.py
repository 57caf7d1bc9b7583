"""The schedule of a job without agents is that of the planner."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.core.arbiter.fleet import spec

from bamboo_core.api.spec import JobSpec, PipelinesSpec, RedundancyMode, RedundancySpec
from bamboo_core.planning.displays import preview
from bamboo_core.protocol.messages import LayerCost

HALVES = LayerCost(
    1.0, 2.0, 8, 8, input_gradient_s=1.0, weight_gradient_s=1.0, can_split=True, activation_bytes=9
)
FUSED = replace(HALVES, can_split=False)


def job(pipelines: int, stages: int, microbatches: int) -> JobSpec:
    """With so many micro-batches in each pipeline."""
    found = spec(stages=stages)
    samples = pipelines * microbatches * found.training.micro_batch_size
    return replace(
        found,
        pipelines=PipelinesSpec(pipelines, stages),
        training=replace(found.training, global_batch_size=samples, steps=1),
    )


def rows(drawn: str) -> dict[str, list[str]]:
    """Agent -> its cells."""
    lines = [line.partition("|") for line in drawn.splitlines()[1:-1]]
    return {name.strip(): cells.split() for name, _, cells in lines}


def test_a_pipeline_whose_layers_cannot_split_is_fused() -> None:
    found = rows(preview.draw(job(2, 2, 3), (FUSED,) * 4))
    assert list(found) == ["0-0", "0-1"]
    assert [c for c in found["0-1"] if c not in ".-"] == ["F0", "B0", "F1", "B1", "F2", "B2"]
    assert found["0-0"][:2] == ["F0", "F1"]


def test_backwards_are_split_where_the_planner_splits_them() -> None:
    """The first stage has no input gradient, so its backward stays whole."""
    found = rows(preview.draw(job(1, 4, 8), (HALVES,) * 8))
    assert not any(c.startswith("I") for c in found["0-0"])
    for agent in ("0-1", "0-2", "0-3"):
        cells = {c[0] for c in found[agent]}
        assert {"F", "I", "W"} <= cells
        assert "B" not in cells


def test_a_split_that_does_not_pay_is_not_drawn() -> None:
    dear = replace(HALVES, weight_gradient_s=2.0)
    assert "W" not in preview.draw(job(1, 4, 8), (dear,) * 8)


def test_room_on_the_device_lets_more_forwards_run_ahead() -> None:
    tight = preview.draw(job(1, 4, 8), (HALVES,) * 4)
    roomy = preview.draw(job(1, 4, 8), (HALVES,) * 4, memory_bytes=1 << 20)

    def ahead(drawn: str) -> int:
        """Forwards of the first stage before its first backward."""
        return rows(drawn)["0-0"].index("B0") - rows(drawn)["0-0"].count(".")

    assert ahead(roomy) > ahead(tight)


@pytest.mark.parametrize("mode", [RedundancyMode.NONE, RedundancyMode.EAGER])
@pytest.mark.parametrize("grid", [(1, 1, 2), (3, 1, 1), (2, 3, 1), (1, 2, 5)])
def test_every_shape_has_a_drawing(mode: RedundancyMode, grid: tuple[int, int, int]) -> None:
    pipelines, stages, microbatches = grid
    wanted = replace(job(pipelines, stages, microbatches), redundancy=RedundancySpec(mode))
    found = rows(preview.draw(wanted, (HALVES,) * 5))
    assert list(found) == [f"0-{s}" for s in range(stages)]
    for cells in found.values():
        assert [c for c in cells if c[0] == "F"] == [f"F{m}" for m in range(microbatches)]


def test_fewer_layers_than_stages_are_refused() -> None:
    with pytest.raises(ValueError, match="2 layers cannot be cut into 4 stages"):
        preview.draw(job(1, 4, 8), (HALVES,) * 2)
