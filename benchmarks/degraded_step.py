"""What a step costs when agents are lost, in exact slots of the scheduler.

    python benchmarks/degraded_step.py

D=4, P=8, 32 micro-batches per pipeline, F = I = W = 1 slot, Replica. 103 = P-1 + 3*32 slots is the
floor of an undisturbed step with one optimizer step for all agents. Reduction and optimizer cost
nothing there. ``gbps`` and ``free``: 128 micro-batches in all, 0.75 GB of gradients per stage,
F = I = W = 18 ms, planned as in a job and run dry with that network. ``timed_over_dry``: the same
job in virtual time without the agent whose loss costs most there: agents, arbiter and network on
one clock, over the dry run. ``over_bound``: up to five
seats are empty anywhere; slots over the mean load of the agents, before and after the move that the
planner advises. Its times are for 512 agents (D=64) with Python's garbage collector off;
``collecting``: with the collector on.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import planned_steps

from bamboo_core.api.spec import RecoveryPolicy, RedundancyMode
from bamboo_core.model.numerics import BatchShape, choose
from bamboo_core.planning.step_shape import StepShape
from bamboo_core.protection import interrupted as rest
from bamboo_core.protocol.messages import LayerCost
from bamboo_core.scheduling import schedule
from bamboo_core.scheduling.candidates import likeliest
from bamboo_core.scheduling.costs import Costs
from bamboo_core.scheduling.sharing import orders
from bamboo_core.scheduling.sharing.step_work import StepWork
from bamboo_sim.programs import arguments, results_file
from bamboo_sim.timed.declared import Device, Links, TimedJob
from bamboo_sim.timed.fleet import Fleet

D, P, M = 4, 8, 32
FLOOR = P - 1 + 3 * M
GOAL_FACTOR = 1.08
Seats = tuple[tuple[int, int], ...]

ONE: list[Seats] = [((d, s),) for d in range(D) for s in range(P)]
TWO: list[Seats] = [
    *[((0, s), (1, s)) for s in range(P)],  # same stage
    *[((0, s), (1, (s + 1) % P)) for s in range(P)],  # neighbouring stages
    *[((1, s), (1, (s + 2) % P)) for s in range(P)],  # one pipeline
    *[((0, s), (3, (s + 4) % P)) for s in range(P)],
]
THREE: list[Seats] = [
    *[((0, s), (1, s), (2, s)) for s in range(P)],  # three copies of one stage
    *[((0, s), (1, (s + 1) % P), (2, (s + 2) % P)) for s in range(P)],
    *[((1, s), (1, (s + 2) % P), (1, (s + 4) % P)) for s in range(P)],
]
KNOWN: list[Seats] = [
    ((0, 3), (0, 4), (1, 0), (1, 4)),
    ((0, 2), (0, 4), (0, 6), (1, 6), (1, 7)),
    ((0, 2), (0, 3), (0, 6), (1, 3), (1, 7)),
    ((0, 3), (0, 4), (1, 3), (1, 5)),
    ((0, 5), (1, 3), (1, 5)),
]
_LOST_AT, _STEADY = 2, 3  # step before the loss, and steps until its copies are made
DRAWN = 4  # patterns for each number of agents lost
_BITS = 8e-9  # of a byte, in billions
NETWORKS = {"10_gbps": 10.0, "25_gbps": 25.0, "100_gbps": 100.0, "free": 100_000.0}
LOST = {1: ONE, 2: TWO, 3: THREE}
UNEQUAL = Costs(
    forward=(1.3, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.2),
    fused=(2.4, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.6),
    input_gradient=(1.2, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.3),
    weight_gradient=(1.2, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.3),
)


def usual(**options: object) -> StepShape:
    """D=4 P=8 M=32, L=2, split backward, cap P-s+8."""
    batch = choose(microbatches=D * M, pipelines_max=D)
    shape = StepShape(D, P, batch, split=True, extra=8)
    return replace(shape, **options)  # type: ignore[arg-type]


def slots(shape: StepShape) -> float:
    """Length of the step by the dry run, which must pass."""
    made = shape.build()
    report = shape.dry_run(made.programs)
    if not report.ok:
        raise RuntimeError(f"{shape.lost}: {report}")
    return report.length


def each(shape: StepShape, losses: Iterable[Seats]) -> dict[str, float]:
    """Lost seats -> slots."""
    losses = list(losses)
    lengths = [slots(replace(shape, lost=lost)) for lost in losses]
    return dict(zip(names(losses), lengths, strict=True))


def names(losses: Iterable[Seats]) -> list[str]:
    """The lost seats as text: "pipeline,stage pipeline,stage"."""
    return [" ".join(f"{d},{s}" for d, s in lost) or "none" for lost in losses]


def interrupted(shape: StepShape, lost: Seats, fraction: float) -> float:
    """Slots of a step that is stopped at a fraction of its time, loses seats, and is resumed.

    Detection, decision and new connections cost nothing here; running instructions complete.
    """
    stopped = rest.stop(shape, at=fraction * slots(shape))
    return rest.resumed(stopped, replace(shape, lost=lost))


def seconds(
    call: Callable[[], object], repeats: int = 5, *, is_collecting: bool = False
) -> list[float]:
    """Processor time of each call (one thread)."""
    out = []
    for _ in range(repeats):
        gc.collect()
        if not is_collecting:
            gc.disable()
        start = time.process_time()
        call()
        out.append(round(time.process_time() - start, 4))
        gc.enable()
    return out


def network_job(gbps: float) -> planned_steps.PlannedJob:
    """A model of 1.5 billion parameters on four pipelines, as a user would ask for it."""
    layer = LayerCost(
        0.018,
        0.036,
        750_000_000,
        0,
        input_gradient_s=0.018,
        weight_gradient_s=0.018,
        can_split=True,
    )
    return planned_steps.PlannedJob(D, P, D * M, layer, gbps)


def networks() -> tuple[dict[str, float], dict[str, dict[str, list[float]]]]:
    """Figures, and the seconds of a step for each network: run dry, undisturbed, without each
    agent, and of one pipeline fewer; and in virtual time, of each step."""
    figures: dict[str, float] = {}
    samples: dict[str, dict[str, list[float]]] = {"dry": {}, "timed": {}}
    for name, gbps in NETWORKS.items():
        job = network_job(gbps)
        whole = planned_steps.step(job, job.seats())
        found = [planned_steps.step(job, job.seats(lost)) for lost in ONE]
        three = planned_steps.step(job, job.seats(pipelines=D - 1))
        figures |= {
            f"undisturbed_{name}_s": round(whole, 3),
            f"one_of_32_lost_{name}": round(max(found) / whole, 3),
            f"three_of_four_{name}_s": round(three, 3),
        }
        samples["dry"][name] = [round(x, 4) for x in (whole, *found, three)]
        if name != "free":  # its steps do not wait for the network
            over, timed = in_virtual_time(name, found)
            figures[f"timed_over_dry_{name}"] = round(over, 4)
            samples["timed"][name] = [round(x, 4) for x in timed]
    return figures, samples


def in_virtual_time(name: str, dry_s: Sequence[float]) -> tuple[float, list[float]]:
    """For a network: seconds of a step without the agent whose loss costs most over those of the
    dry run; and seconds of steps before the loss and after it, in virtual time.

    dry_s: seconds of a step without each agent. The first steps after the loss are not compared:
    copies of its stage are made in them.
    """
    job = network_job(NETWORKS[name])
    fleet = Fleet(
        TimedJob(
            D,
            P,
            M,
            job.costs,
            RedundancyMode.REPLICA,
            links=Links(bandwidth=job.gbps / _BITS),
            device=Device(memory_bytes=job.memory_bytes),
        )
    )
    fleet.run_to(_LOST_AT)
    ((pipeline, stage),) = ONE[dry_s.index(max(dry_s))]
    fleet.kill(fleet.seat(pipeline, stage))
    last = _LOST_AT + _STEADY
    fleet.run_to(last)
    return fleet.step_s(last) / max(dry_s), [fleet.step_s(k) for k in range(1, last + 1)]


def patterns() -> tuple[dict[str, float], dict[str, dict[str, list[float]]]]:
    """Figures, and by lost seats the slots over the mean load before and after one move.

    Seats are drawn with a fixed seed; those known to be worst for two pipelines are among them.
    """
    figures: dict[str, float] = {}
    samples: dict[str, dict[str, list[float]]] = {}
    layer = LayerCost(1.0, 2.0, 0, 0, input_gradient_s=1.0, weight_gradient_s=1.0, can_split=True)
    for pipelines in (2, 3, 4):
        job = planned_steps.PlannedJob(pipelines, P, D * M, layer, NETWORKS["free"])
        seats = [(d, s) for d in range(pipelines) for s in range(P)]
        draw = random.Random(pipelines)
        losses = [tuple(sorted(draw.sample(seats, f))) for f in range(1, 6) for _ in range(DRAWN)]
        found = {}
        for lost in (*losses, *(KNOWN if pipelines == 2 else ())):
            bound = 3 * D * M * P / (len(seats) - len(lost))
            before, after, _ = planned_steps.best_move(job, job.seats(lost))
            found[names([lost])[0]] = [round(before / bound, 3), round(after / bound, 3)]
        for i, when in enumerate(("before", "after")):
            figures[f"d{pipelines}_over_bound_{when}_moves"] = max(x[i] for x in found.values())
        samples[f"{pipelines} pipelines"] = found
    return figures, samples


def planner_times() -> dict[str, list[float]]:
    """Seconds for work map, closure, schedule and dry run of 512 agents, one lost."""
    batch = choose(microbatches=64 * M, pipelines_max=64)
    shape = StepShape(64, P, batch, lost=((1, 3),), split=True, extra=8)
    holders, work = shape.holders(), shape.work()
    tasks = shape.graph(work)
    caps = schedule.caps(shape.seats, shape.extra)
    programs = shape.build(tasks).programs

    def assign_and_build() -> None:
        shared = likeliest(StepWork(batch, shape.seats, holders), RecoveryPolicy.AUTO)
        order = orders.positions(batch, shared.work, shared.pipelines)
        schedule.build(tasks, batch=batch, costs=shape.timing, caps=caps, order=order)

    return {
        "schedule_512_agents": seconds(assign_and_build),
        "schedule_512_agents_collecting": seconds(assign_and_build, is_collecting=True),
        "closure_512_agents": seconds(lambda: shape.graph(work), 3),
        "dry_run_512_agents": seconds(lambda: shape.dry_run(programs), 3),
    }


def policies() -> dict[str, dict[str, float]]:
    """Slots by policy and number of lost agents."""
    return {
        f"{policy.value.lower()}_{count}_of_32": each(usual(policy=policy), losses)
        for policy in RecoveryPolicy
        for count, losses in LOST.items()
    }


def settings() -> dict[str, dict[str, float]]:
    """Slots of Diffuse with one lost agent under other settings; ``none``: the undisturbed step."""
    losses = [(), *ONE]
    found = {
        f"cap_plus_{extra}_leaf_{leaf}": each(
            usual(extra=extra, batch=BatchShape(D * M, leaf, 4)), losses
        )
        for leaf in (1, 2, 4)
        for extra in (0, 4, 8)
    }
    found["latency_0.25"] = each(usual(costs=Costs.even(P, latency=0.25)), losses)
    found["latency_0.25_cap_plus_12"] = each(
        usual(costs=Costs.even(P, latency=0.25), extra=12), losses
    )
    found["unequal_stages"] = each(usual(costs=UNEQUAL), losses)
    found["fused"] = each(usual(split=False), losses)
    found["fused_cap_plus_16"] = each(usual(split=False, extra=16), losses)
    return found


def interruptions() -> dict[str, float]:
    """Extra slots of a step that loses an agent at a fraction of its time."""
    shape = usual()
    whole = slots(shape)
    return {
        f"{d},{s} at {fraction}": round(interrupted(shape, ((d, s),), fraction) - whole, 2)
        for fraction in (0.25, 0.5, 0.75)
        for d, s in ((1, 0), (1, 3), (1, 7))
    }


def whole_grids() -> dict[str, float]:
    """Step time of a full pipeline with I and W split, over that of 1F1B.

    By P, M, the cap of forwards in flight beyond P - s, and the extra cost of a split backward.
    """
    found = {}
    for stages, microbatches in ((4, 8), (8, 16), (8, 32)):
        batch = choose(microbatches=microbatches, pipelines_max=1)
        for price in (0.0, 0.12):
            half = (1 + price,) * stages
            costs = Costs((1.0,) * stages, (2.0,) * stages, half, half)
            fused = slots(StepShape(1, stages, batch, costs=costs))
            for extra in (0, 8):
                apart = slots(StepShape(1, stages, batch, split=True, extra=extra, costs=costs))
                name = f"split_over_fused_p{stages}_m{microbatches}_cap_plus_{extra}_price_{price}"
                found[name] = round(apart / fused, 3)
    return found


def main() -> None:
    """Measure, write the file, print the figures."""
    arguments.none(__doc__)
    by_policy, by_setting, beyond = policies(), settings(), interruptions()
    times, by_network, by_pattern = planner_times(), networks(), patterns()
    undisturbed = slots(usual())
    figures: dict[str, float] = {"floor_slots": FLOOR, "undisturbed_slots": undisturbed}
    for name, found in by_policy.items():
        figures[f"{name}_slots"] = max(found.values())
        figures[f"{name}_over_floor"] = round(max(found.values()) / FLOOR, 4)
    for count in (1, 2, 3):
        budget = GOAL_FACTOR * D * P / (D * P - count) * undisturbed
        figures[f"budget_{count}_of_32_slots"] = round(budget, 1)
    for name, found in by_setting.items():
        degraded = max(x for lost, x in found.items() if lost != "none")
        figures[f"{name}_undisturbed_slots"] = round(found["none"], 2)
        figures[f"{name}_1_of_32_slots"] = round(degraded, 2)
    figures["interrupted_worst_extra_slots"] = max(beyond.values())
    figures["interrupted_mean_extra_slots"] = round(statistics.mean(beyond.values()), 2)
    figures |= whole_grids()
    figures |= by_network[0] | by_pattern[0]
    for name, samples in times.items():
        figures[f"{name}_s"] = statistics.median(samples)
    path = results_file.write(
        "degraded_step",
        samples={
            "lost": {
                **{f"{count}_of_32": names(lost) for count, lost in LOST.items()},
                "none, 1_of_32": names([(), *ONE]),
                "networks_s": "none, 1_of_32, a pipeline",
                "timed_s": "steps 1 and 2: none; later: the worst of 1_of_32",
            },
            "slots": {name: [*found.values()] for name, found in (by_policy | by_setting).items()},
            "interrupted": beyond,
            "networks_s": by_network[1]["dry"],
            "timed_s": by_network[1]["timed"],
            "over_bound": by_pattern[1],
            "seconds": times,
        },
        figures=figures,
        note="slots are exact; seconds are medians of processor time of one thread, collector off",
    )
    print(*(f"{name}: {value}" for name, value in figures.items()), f"-> {path}", sep="\n")


if __name__ == "__main__":
    main()
