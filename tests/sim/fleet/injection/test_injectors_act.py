"""Each injector acts on the code as it is now: it is run once, and its counter must rise.

Injectors replace private functions of the agents. If one of those has another name, or is called
in another way, its injector would change nothing, and the tests that use it would pass.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from tests.agent.transport.process_group.pair import B, frame, pair
from tests.agent.transport.process_group.pair import switch as switch_to_group

from bamboo_agent.transport.process_group import groups, maker
from bamboo_core.api.spec import RedundancyMode
from bamboo_core.arbiter_state.events import Timing
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.numerics import BatchShape
from bamboo_sim.fleet.injection.effects import OPERATOR, Effect, count, patched
from bamboo_sim.fleet.injection.faults import Faults
from bamboo_sim.fleet.local_fleet import ForkServerProcess, LocalFleet
from bamboo_sim.fleet.local_operator import LocalOperator, Writes
from bamboo_sim.fleet.runs.campaign import Campaign, Point
from bamboo_sim.fleet.runs.jobs import tiny_gpt
from bamboo_sim.fleet.switches import group_switch, kill_switch
from bamboo_sim.fleet.switches.kill_switch import (
    ALWAYS,
    FREEZE,
    HANG,
    MISCOMPUTE,
    KillSwitch,
    KillSwitchWorker,
)
from bamboo_sim.soak import kinds
from bamboo_sim.soak.kinds import VOLUME
from bamboo_sim.workers import in_process_fleet, plans
from bamboo_sim.workers.in_process_fleet import InProcessFleet
from bamboo_sim.workers.jobs import tiny_gpt as small_gpt

# ---------------------------------------------------------------- a fleet of real agents

AGENTS = {f"agent-{n}": f"zone-{'abc'[n % 3]}" for n in range(5)}
TIMING = Timing(start_grace_s=0.2, join_grace_s=0.2, instruction_floor_s=1.5)


def seats(fleet: LocalFleet) -> list[AgentId]:
    return [agent for pipeline in fleet.plan().pipelines for agent in pipeline if agent is not None]


def neighbours(fleet: LocalFleet) -> tuple[AgentId, AgentId]:
    """Two agents of one pipeline that send to each other. A pipeline may lack an agent."""
    return next(
        (one, other)
        for pipeline in fleet.plan().pipelines
        for one, other in pairwise(pipeline)
        if one is not None and other is not None
    )


def are_all_connected(fleet: LocalFleet) -> bool:
    """Whether no agent of the plan is without a session: one more fault would be its end, and the
    fault after that would meet the plan without it too early."""
    status = fleet.status()
    return status.plan is not None and set(status.connected) >= set(status.plan.live)


def cut(fleet: LocalFleet, *, one_way: bool) -> AgentId:
    one, other = neighbours(fleet)
    fleet.faults.cut(one, other, one_way=one_way)
    return other


def delay(fleet: LocalFleet) -> AgentId:
    agent = seats(fleet)[0]
    fleet.faults.delay(agent, 0.01)
    return agent


def reset(fleet: LocalFleet) -> AgentId:
    agent = seats(fleet)[0]
    fleet.faults.reset([agent])
    return agent


def reset_link(fleet: LocalFleet) -> AgentId:
    one, other = neighbours(fleet)
    fleet.faults.reset_link(one, other)
    return one


def truncate(fleet: LocalFleet) -> AgentId:
    one, other = neighbours(fleet)
    fleet.faults.truncate(one, other)
    return one


def trickle(fleet: LocalFleet) -> None:
    """Either end may be the one whose bytes wait: then the other one has nothing to send."""
    fleet.faults.trickle(*neighbours(fleet))


def slow_disk(fleet: LocalFleet) -> None:
    fleet.faults.slow_disk(0.01)


def take_away(fleet: LocalFleet) -> None:
    fleet.faults.take_away(fleet.folder.parent / VOLUME)


def hold(fleet: LocalFleet) -> AgentId:
    agent = seats(fleet)[0]
    fleet.operator.hold(agent)
    return agent


def refuse(fleet: LocalFleet) -> AgentId:
    agent = seats(fleet)[0]
    fleet.operator.refuse(agent)
    return agent


def slow_writes_and_kill(fleet: LocalFleet) -> AgentId:
    fleet.operator.writes = Writes(delay_s=0.05)
    fleet.kill(agent := seats(fleet)[0])
    return agent


def failing_writes_and_kill_worker(fleet: LocalFleet) -> AgentId:
    fleet.operator.writes = Writes(fail=True)
    fleet.kill_worker(agent := seats(fleet)[0])
    return agent


def freeze(fleet: LocalFleet) -> AgentId:
    agent = seats(fleet)[0]
    fleet.freeze(agent)
    fleet.thaw(agent)
    return agent


def terminate(fleet: LocalFleet) -> AgentId:
    agent = seats(fleet)[0]
    fleet.terminate(agent)
    return agent


def hang(fleet: LocalFleet) -> AgentId:
    agent = seats(fleet)[0]
    fleet.hang(agent)
    return agent


Act = Callable[[LocalFleet], str | None]
CASES: tuple[tuple[str, Act, tuple[Effect, ...]], ...] = (
    ("Faults.delay", delay, (Effect.LATE_FRAME,)),
    ("Faults.delay", delay, (Effect.LATE_HEARTBEAT,)),
    ("Faults.slow_disk", slow_disk, (Effect.SLOW_DISK,)),
    ("Faults.fail_disk", lambda fleet: fleet.faults.fail_disk(), (Effect.FAILED_DISK,)),
    ("Faults.fill_disk", lambda fleet: fleet.faults.fill_disk(), (Effect.FULL_DISK,)),
    ("Faults.take_away", take_away, (Effect.ABSENT_FOLDER,)),
    ("LocalOperator.hold", hold, (Effect.HELD,)),
    ("LocalOperator.refuse", refuse, (Effect.REFUSED,)),
    ("LocalOperator.freeze", lambda fleet: fleet.operator.freeze(), (Effect.UNHEARD,)),
    ("LocalFleet.freeze", freeze, (Effect.STOPPED,)),
    ("Faults.truncate", truncate, (Effect.CUT_FRAME,)),
    ("Faults.trickle", trickle, (Effect.TRICKLED,)),
    ("Faults.reset_link", reset_link, (Effect.RESET,)),
    ("Faults.reset", reset, (Effect.RESET,)),
    ("Faults.cut", lambda fleet: cut(fleet, one_way=False), (Effect.LOST_SEGMENT,)),
    ("Faults.cut", lambda fleet: cut(fleet, one_way=True), (Effect.LOST_SEGMENT,)),
    ("LocalOperator.writes", slow_writes_and_kill, (Effect.SLOW_WRITE,)),
    ("LocalFleet.kill", slow_writes_and_kill, (Effect.KILLED,)),
    ("LocalOperator.writes", failing_writes_and_kill_worker, (Effect.FAILED_WRITE,)),
    ("LocalFleet.kill_worker", failing_writes_and_kill_worker, (Effect.KILLED,)),
    ("LocalFleet.terminate", terminate, (Effect.NOTICED,)),
    ("LocalFleet.hang", hang, (Effect.HUNG,)),
)
"""Injector, a use of it, which returns its victim if there is one, and its effects. Some uses have
the effects of two injectors."""
DEADLY = (slow_writes_and_kill, failing_writes_and_kill_worker, terminate, hang)
NO_FAULTS = {
    Faults: {"address_of", "close", "effects", "heal"},
    LocalOperator: {
        *(
            "address",
            "admit",
            "change_goal",
            "commits",
            "expect",
            "handle",
            "let_go",
            "lost",
            "replace",
        ),
        *("start", "stop", "thaw", "Session"),
    },
    LocalFleet: {
        *("add", "committed", "committed_step", "died_at", "divergences", "history", "hung_at"),
        *("instructions", "messages", "over", "plan", "planned", "record", "recorded"),
        *(
            "redone_tasks",
            "remove",
            "samples",
            "status",
            "steps",
            "suspended",
            "thaw",
            "until",
            "weights",
        ),
    },
}
"""Public names that are no faults. ``stop`` and ``start`` of an operator replace it."""


def heal(fleet: LocalFleet) -> None:
    fleet.faults.heal()
    fleet.operator.let_go()
    fleet.operator.thaw()
    fleet.operator.writes = Writes()


@pytest.mark.timeout(240)
async def test_each_fault_of_a_fleet_acts(tmp_path: Path, forkserver: ForkServerProcess) -> None:
    """A fleet asserts at its end, too, that each order has had an effect."""
    (tmp_path / VOLUME).mkdir()
    (tmp_path / "checkpoints").symlink_to(tmp_path / VOLUME)
    job = tiny_gpt(
        tmp_path, steps=1_000_000, pipelines=2, stages=2, mode=RedundancyMode.REPLICA,
        microbatches=4, every_steps=2,
    )  # fmt: skip
    async with LocalFleet(job, tmp_path / "fleet", forkserver=forkserver, timing=TIMING) as fleet:
        await fleet.add(AGENTS)
        await fleet.committed(1, deadline_s=120.0)
        campaign = Campaign(fleet)
        for act in dict.fromkeys(act for _, act, _ in CASES):
            await fleet.until(lambda: are_all_connected(fleet), "sessions of all agents")
            await fleet.committed(fleet.committed_step + 2)  # all links of the plan work again
            await campaign.steady_step()
            before = fleet.faults.counted.acts()
            victim = act(fleet)
            who = (*fleet.pods, OPERATOR) if victim is None else (victim, OPERATOR)
            for name, _, effects in (case for case in CASES if case[1] is act):
                await fleet.until(
                    lambda who=who, effects=effects, before=before: (  # type: ignore[misc]
                        count(fleet.faults.counted.acts(), who, effects)
                        > count(before, who, effects)
                    ),
                    f"an effect of {name}",
                    deadline_s=30.0,
                )
            heal(fleet)
            if act in DEADLY:
                agent = AgentId(victim or "")
                await fleet.add({f"after-{agent}": fleet.pods[agent].zone})
                if act is not terminate:
                    fleet.remove(agent)
                await fleet.until(lambda agent=agent: agent in fleet.exits, f"the end of {agent}")  # type: ignore[misc]
        died = await campaign.inject(Point(0, 0, "before", "VOTE"))
        assert died.points
        assert fleet.faults.effects()[Effect.DIED] == 1
        await fleet.operator.replace()
        assert fleet.faults.effects(OPERATOR)[Effect.REPLACED] == 1
        await campaign.steady_step()


@pytest.mark.parametrize("owner", [Faults, LocalOperator, LocalFleet])
def test_no_fault_of_a_fleet_is_left_out(owner: type) -> None:
    public = {name for name in vars(owner) if not name.startswith("_")}
    tried = {name.split(".")[1] for name, _, _ in CASES if name.startswith(f"{owner.__name__}.")}
    tried |= {"arm_kill_switch"} & public  # see the death before VOTE, and the moments below
    assert public - NO_FAULTS[owner] == tried, "add a case, or say that it is no fault"


async def test_a_fleet_tells_a_fault_without_effect(
    tmp_path: Path, forkserver: ForkServerProcess
) -> None:
    """Its agents never start, so nothing of theirs can be slow."""
    fleet = LocalFleet(tiny_gpt(tmp_path), tmp_path / "fleet", forkserver=forkserver)
    with pytest.raises(AssertionError, match=r"faults without effect: slow disk of 0\.5 s"):
        async with fleet:
            fleet.faults.slow_disk(0.5)
    fleet = LocalFleet(
        tiny_gpt(tmp_path), tmp_path / "other", forkserver=forkserver, requires_effects=False
    )
    async with fleet:
        fleet.faults.slow_disk(0.5)


@pytest.mark.parametrize(
    ("moment", "instruction", "text"),
    [
        ("before", "VOTE @9", "before VOTE @9 for agent-0"),
        (HANG, kill_switch.ANY, r"hang \* for agent-0"),
        ("in", "MAKE-SENDER", "in MAKE-SENDER for agent-0"),
    ],
)
async def test_a_fleet_tells_a_kill_switch_that_nobody_has_reached(
    tmp_path: Path, forkserver: ForkServerProcess, moment: str, instruction: str, text: str
) -> None:
    fleet = LocalFleet(tiny_gpt(tmp_path), tmp_path / "fleet", forkserver=forkserver)
    kill_switch.create(tmp_path / "fleet/kill-switches/agent-0")
    with pytest.raises(AssertionError, match=f"faults without effect: {text}"):
        async with fleet:
            fleet.arm_kill_switch("agent-0", moment, instruction)
    fleet = LocalFleet(tiny_gpt(tmp_path), tmp_path / "other", forkserver=forkserver)
    kill_switch.create(tmp_path / "other/kill-switches/agent-0")
    async with fleet:  # whoever arms it looks whether somebody has died
        fleet.arm_kill_switch("agent-0", moment, instruction, must_act=False)
    assert not fleet.faults.counted.idle_orders()


def test_each_moment_of_the_kill_switch_has_its_effect() -> None:
    for words, effect in SWITCHED.values():
        assert kill_switch.effect_of(words.split(" ")[0]) is effect
    assert {kill_switch.effect_of(moment) for moment in group_switch.MOMENTS} == {Effect.DIED}


def test_each_case_shows_one_effect() -> None:
    """With two, either would hide that the other one is gone."""
    assert [name for name, _, effects in CASES if len(effects) != 1] == []


def test_each_kind_of_a_soak_has_an_effect() -> None:
    assert kinds.EFFECTS.keys() == kinds.KINDS.keys()
    assert all(kinds.EFFECTS.values())


# ---------------------------------------------------------------- the kill switch


class Spared(KillSwitch):
    """Its process lives on. ``asked``: all moments that the worker has reached."""

    def __init__(self, path: Path) -> None:
        kill_switch.create(path)
        self.effects, self.sent, self.asked = Counter[Effect](), list[signal.Signals](), set[str]()
        super().__init__(path, 0, lambda effect: self.effects.update([effect]))

    def is_armed(self, text: str) -> bool:
        self.asked.add(text)
        return super().is_armed(text)

    def send(self, number: signal.Signals) -> None:
        self.sent.append(number)

    def wait(self) -> None:
        self.disarm()


SWITCHED: dict[str, tuple[str, Effect]] = {
    **{moment: (f"{moment} VOTE", Effect.DIED) for moment in kill_switch.MOMENTS},
    "hang": (f"{HANG} VOTE", Effect.HUNG),
    "hang *": (f"{HANG} {kill_switch.ANY}", Effect.HUNG),
    "freeze": (f"{FREEZE} VOTE", Effect.FROZE),
    "flip": ("flip UPDATE", Effect.FLIPPED),
    **{
        f"{word} {op}": (f"{word} {op}", Effect.MISCOMPUTED)
        for word in (MISCOMPUTE, ALWAYS)
        for op in kill_switch._COMPUTES
    },
    "always UPDATE in each step": (f"{ALWAYS} UPDATE", Effect.MISCOMPUTED),
}
"""Case -> words with which the switch is armed, without the rest of the instruction."""


@pytest.fixture
def switch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Spared:
    """The switch of all workers of an in-process fleet."""
    made = Spared(tmp_path / "switch")
    monkeypatch.setattr(KillSwitchWorker, "switch", made, raising=False)
    monkeypatch.setattr(in_process_fleet, "Worker", kill_switch.install(made))
    return made


def test_each_moment_of_the_kill_switch_acts(switch: Spared, tmp_path: Path) -> None:
    fleet = InProcessFleet(small_gpt(steps=1000, microbatches=4), plans.names(1))
    decided = plans.decide(
        fleet.job,
        fence=Fence(0, 1, 1),
        layers=fleet.layers,
        reports=fleet.stop(Fence(0, 1, 1)),
        batch=BatchShape(4, 1, 2),
        validation_samples=fleet.validation_samples,
    )
    fleet.install(decided)
    fleet.wait(lambda: len(fleet.history()) > 2)
    reached = {text for text in switch.asked if text.endswith("@1")}
    for name, (words, effect) in SWITCHED.items():
        text = words
        if name not in ("hang *", "always UPDATE in each step"):
            step = fleet.history()[-1].step + 3
            text = min(x for x in reached if x.startswith((f"{words}[", f"{words} ")))
            text = text.removesuffix("@1") + f"@{step}"
        before = switch.effects[effect]
        kill_switch.arm(tmp_path / "switch", *text.split(" ", 1))
        fleet.wait(lambda effect=effect, before=before: switch.effects[effect] > before)  # type: ignore[misc]
        switch.disarm()
    fleet.close()
    assert switch.sent == [signal.SIGKILL] * len(kill_switch.MOMENTS) + [signal.SIGSTOP]


def test_each_moment_within_a_group_is_reached(
    switch: Spared, monkeypatch: pytest.MonkeyPatch
) -> None:
    factories = dict(groups.FACTORIES)
    for module in (groups, maker):
        monkeypatch.setattr(module, "FACTORIES", factories)
    monkeypatch.setattr(maker, "Rendezvous", maker.Rendezvous)
    group_switch.install(switch)
    a, b = ends = pair(backend="gloo")
    try:
        switch_to_group(a, b)
        a.transport.send(B, frame(1, 1))
        b.frames(2)
        wanted = {f"{moment} {x}" for moment in group_switch.MOMENTS for x in group_switch.NAMES}
        a.wait(lambda: wanted <= switch.asked)
    finally:
        for end in ends:
            end.transport.close()


# ---------------------------------------------------------------- all of them


def test_no_effect_is_left_out() -> None:
    tried = {effect for _, _, effects in CASES for effect in effects}
    tried |= {effect for _, effect in SWITCHED.values()}
    tried |= {Effect.REPLACED, Effect.SUSPENDED}  # tests/sim/soak/test_kinds.py has the latter
    assert tried == set(Effect), "an effect that no case expects"


def test_a_name_that_is_gone_is_told_at_once() -> None:
    with pytest.raises(AttributeError, match="'_was_renamed', which a fault replaces; name what"):
        patched(KillSwitchWorker, "_was_renamed", None)
