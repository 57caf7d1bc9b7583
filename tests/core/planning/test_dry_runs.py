"""What the dry run proves of the planner's programs: lanes change none, memory suffices."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product

import pytest
from tests.core.arbiter.fleet import spec
from tests.core.planning.test_planner import request_of

from bamboo_core.api.spec import RedundancyMode, RedundancySpec
from bamboo_core.model.items import Item, Kind
from bamboo_core.placement.plan import layers_of
from bamboo_core.planning import hosting, planner
from bamboo_core.planning.requests import Continuations, Decision, PlanRequest
from bamboo_core.protocol.messages import Continuation, LayerCost
from bamboo_core.scheduling import dry_run
from bamboo_core.scheduling.costs import Costs
from bamboo_core.scheduling.device_memory import Sizes, fits
from bamboo_core.scheduling.dry_run import DryRunResult
from bamboo_core.scheduling.item_bytes import ItemBytes

REPLICA, EAGER = RedundancyMode.REPLICA, RedundancyMode.EAGER
COST = LayerCost(
    1.0, 2.0, parameter_bytes=1000, output_bytes=50, input_gradient_s=1.1,
    weight_gradient_s=1.1, can_split=True, activation_bytes=300,
)  # fmt: skip
RECORDS = frozenset({Kind.VOTE, Kind.COMMIT, Kind.FILE, Kind.SCORE})  # small, and not counted
GRIDS = list(product((1, 2), (2, 4)))
LOSSES: list[dict[str, object]] = [{}, {"kill": "a1", "after": 150}]


def request(
    grid: tuple[int, int],
    mode: RedundancyMode,
    loss: dict[str, object],
    *,
    memory_bytes: int = 0,
    host_memory: str = "900",
) -> PlanRequest:
    job = replace(
        spec(pipelines=grid[0], stages=grid[1], steps=9, microbatches=8 * grid[0], every=0),
        redundancy=RedundancySpec(mode, host_memory),
    )
    found = request_of(job, **loss)  # type: ignore[arg-type]
    return replace(found, costs=(COST,) * found.layers, memory_bytes=memory_bytes)


def planned(wanted: PlanRequest) -> tuple[Decision, dict[str, Continuation]]:
    decision, rest = planner.compute(wanted)
    assert isinstance(decision, Decision)
    assert isinstance(rest, Continuations)
    return decision, {str(agent): found for agent, found in rest.directives.items()}


@pytest.mark.parametrize("loss", LOSSES, ids=["whole", "a loss"])
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("memory_bytes", [0, 1 << 20])
def test_the_mandatory_programs_are_the_same_with_a_lane(
    grid: tuple[int, int], memory_bytes: int, loss: dict[str, object]
) -> None:
    """A lane takes no memory from activations in flight, where there is enough for both."""
    lazy = request(grid, REPLICA, loss, memory_bytes=memory_bytes)
    eager = replace(lazy, spec=replace(lazy.spec, redundancy=RedundancySpec(EAGER)))
    (first, later), (ahead, later_ahead) = planned(lazy), planned(eager)
    assert any(x.lane for x in later_ahead.values()) is (len(first.plan.live) > 1)
    for agent, order in first.directives.items():
        assert ahead.directives[agent].resume == order.resume
    for name, rest in later.items():
        assert (later_ahead[name].steady, later_ahead[name].final) == (rest.steady, rest.final)


def test_the_planners_dry_run_has_the_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    run, seen = dry_run.dry_run, []

    def watched(*programs: object, **options: object) -> DryRunResult:
        report: DryRunResult = run(*programs, **options)  # type: ignore[arg-type]
        seen.append(sum(report.ahead_s.values()))
        return report

    monkeypatch.setattr(dry_run, "dry_run", watched)
    for mode in (REPLICA, EAGER):
        seen.clear()
        planned(request((1, 4), mode, {}))
        assert any(seen) is (mode is EAGER)


def peaks(wanted: PlanRequest) -> tuple[DryRunResult, int]:
    """A steady step in the dry run, and the bytes that the plan counts with."""
    decision, rest = planned(wanted)
    plan = decision.plan
    need = hosting.memory_of(plan, wanted.spec.redundancy, wanted.costs, wanted.memory_bytes)
    sizes = ItemBytes(wanted.costs)
    orders = decision.directives.values()
    assert {(x.lane_limit, x.hosts_ahead) for x in orders} == {(need.ahead, need.ahead_bytes > 0)}

    def on_device(item: Item) -> int:
        is_elsewhere = need.ahead_bytes and item.kind is Kind.PREFIX
        return 0 if is_elsewhere or item.kind in RECORDS else sizes.of(item)

    report = dry_run.dry_run(
        {a: rest[a].steady for a in plan.members},
        batch=plan.batch,
        layers=plan.layers,
        holdings={a: [Item.ver(0, x) for x in layers_of(plan.wants[a])] for a in plan.live},
        costs=Costs.measured(wanted.costs),
        lanes={a: rest[a].lane for a in plan.members},
        lane_limit=need.ahead,
        bytes_of=on_device,
    )
    assert report.ok
    assert max(report.ahead.values()) <= need.ahead
    each = Sizes.of(plan.cut, wanted.costs, microbatches=8).activation_bytes
    assert fits(need, wanted.memory_bytes) is (not decision.shortage)
    most = need.after_loss_bytes + need.spare * each
    if not decision.shortage and wanted.memory_bytes:
        assert most <= 0.8 * wanted.memory_bytes
    return report, most


@pytest.mark.parametrize("loss", LOSSES, ids=["whole", "a loss"])
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("mode", [REPLICA, EAGER])
def test_the_dry_run_needs_no_more_memory_than_the_plan_counts_with(
    mode: RedundancyMode, grid: tuple[int, int], loss: dict[str, object]
) -> None:
    found = partial(request, grid, mode, loss)
    for memory_bytes in (0, 18_000, 20_000, 22_000, 34_000, 40_000, 60_000):
        report, most = peaks(found(memory_bytes=memory_bytes))
        assert max(report.bytes.values()) <= most


def test_a_short_lane_drops_its_oldest_forwards_in_the_dry_run() -> None:
    roomy, short = (
        peaks(request((1, 4), EAGER, {}, memory_bytes=size, host_memory="0"))[0]
        for size in (60_000, 24_000)
    )
    assert max(roomy.ahead.values()) > max(short.ahead.values()) == 1
    assert sum(short.ahead_s.values()) > 4  # slices go on: not just one forward for each agent
