"""Durable facts in the API: whose write replaces what, and what a leader does that comes too late.

The rule: a leader's first write replaces exactly the facts that it began from, later ones its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.core.controller.builders import JOB, manifest

from bamboo_core.api.outcome import Outcome
from bamboo_core.arbiter_state.durable import Durable, to_json
from bamboo_core.model.ids import AgentId, Fence
from bamboo_operator.kube import api
from bamboo_operator.kube.api import ApiError
from bamboo_operator.status import durable_facts
from bamboo_operator.status.durable_facts import LeaderFacts, NotWrittenError, OvertakenError

from ..memory_api import MemoryApi

PATH = api.job("ns", "job")
OLD = Durable(term=4, plan=Fence(0, 4, 7), members=(AgentId("a"), AgentId("b")))
LATE = replace(OLD, plan=Fence(0, 4, 8), members=(AgentId("a"),))
NEW = replace(OLD, term=5)


@pytest.fixture
def kube() -> MemoryApi:
    found = MemoryApi()
    meta = {"name": "job", "namespace": "ns", "uid": JOB.uid, "generation": JOB.generation}
    body = manifest() | {"metadata": meta}
    found.put(PATH, body | {"status": {"arbiter": to_json(OLD)}})
    return found


def stored(kube: MemoryApi) -> Durable:
    return durable_facts.read(kube.objects[PATH])


def change(kube: MemoryApi, part: str, **values: Any) -> None:
    body = kube.objects[PATH]
    kube.put(PATH, body | {part: (body.get(part) or {}) | values})


def before_apply(kube: MemoryApi, act: Callable[[], None], times: int = 1) -> None:
    """Something that happens between a write's look and its PATCH."""
    left = [act] * times

    def hook(verb: str, path: str) -> None:
        if verb == "apply" and left:
            left.pop()()

    kube.fail = hook


async def test_a_late_write_between_read_and_first_write_is_kept(kube: MemoryApi) -> None:
    old, new = LeaderFacts(Durable()), LeaderFacts(OLD)
    change(kube, "status", arbiter=to_json(OLD) | {"writer": old.writer})
    await durable_facts.write(kube, JOB, LATE, old)
    with pytest.raises(OvertakenError, match=r"ours, 5, began from term 4 with 0.4.7"):
        await durable_facts.write(kube, JOB, NEW, new)
    assert stored(kube) == LATE
    again = LeaderFacts(stored(kube))
    await durable_facts.write(kube, JOB, replace(LATE, term=5), again)
    assert stored(kube) == replace(LATE, term=5)


async def test_a_late_write_between_check_and_patch_is_kept(kube: MemoryApi) -> None:
    before_apply(kube, lambda: change(kube, "status", arbiter=to_json(LATE)))
    with pytest.raises(OvertakenError):
        await durable_facts.write(kube, JOB, NEW, LeaderFacts(OLD))
    assert stored(kube) == LATE


async def test_the_old_leader_comes_too_late_even_with_a_higher_term(kube: MemoryApi) -> None:
    """Its arbiter may have restarted, which raises the term."""
    old, new = LeaderFacts(Durable(), "old"), LeaderFacts(OLD)
    change(kube, "status", arbiter=to_json(OLD) | {"writer": "old"})
    await durable_facts.write(kube, JOB, NEW, new)
    for term in (4, 5, 6):
        with pytest.raises(OvertakenError, match="term 5 has written"):
            await durable_facts.write(kube, JOB, replace(LATE, term=term), old)
    assert stored(kube) == NEW


async def test_only_one_of_two_leaders_with_equal_facts_writes(kube: MemoryApi) -> None:
    """Equal terms, equal facts: the other one must not take them for its own."""
    await durable_facts.write(kube, JOB, NEW, LeaderFacts(OLD))
    with pytest.raises(OvertakenError):
        await durable_facts.write(kube, JOB, NEW, LeaderFacts(OLD))


async def test_other_parts_may_change_at_any_time(kube: MemoryApi) -> None:
    leader_facts = LeaderFacts(OLD)
    before_apply(kube, lambda: change(kube, "status", phase="Running"))
    await durable_facts.write(kube, JOB, NEW, leader_facts)
    before_apply(kube, lambda: change(kube, "spec", suspend=True))
    await durable_facts.write(kube, JOB, replace(NEW, committed=3), leader_facts)
    assert stored(kube).committed == 3
    body = kube.objects[PATH]
    assert (body["status"]["phase"], body["spec"]["suspend"]) == ("Running", True)


async def test_a_job_that_changes_all_the_time_is_tried_again_later(kube: MemoryApi) -> None:
    before_apply(kube, lambda: change(kube, "status", phase="Running"), times=5)
    with pytest.raises(NotWrittenError, match="changes too often"):
        await durable_facts.write(kube, JOB, NEW, LeaderFacts(OLD))
    assert stored(kube) == OLD
    await durable_facts.write(kube, JOB, NEW, LeaderFacts(OLD))


async def test_a_first_write_whose_answer_was_lost_is_our_own(kube: MemoryApi) -> None:
    leader_facts = LeaderFacts(OLD)

    def lose() -> None:
        change(kube, "status", arbiter=to_json(NEW) | {"writer": leader_facts.writer})
        raise ApiError(0, "Unreachable", "cut")

    before_apply(kube, lose)
    with pytest.raises(NotWrittenError):
        await durable_facts.write(kube, JOB, NEW, leader_facts)
    await durable_facts.write(kube, JOB, replace(NEW, plan=Fence(0, 5, 8)), leader_facts)
    assert stored(kube).plan == Fence(0, 5, 8)


async def test_facts_that_cannot_be_read_are_not_overwritten(kube: MemoryApi) -> None:
    change(kube, "status", arbiter={"cut": 3})
    with pytest.raises(OvertakenError, match="unreadable"):
        await durable_facts.write(kube, JOB, NEW, LeaderFacts(OLD))
    assert kube.objects[PATH]["status"]["arbiter"] == {"cut": 3}


async def test_erased_facts_are_written_again(kube: MemoryApi) -> None:
    leader_facts = LeaderFacts(OLD)
    await durable_facts.write(kube, JOB, NEW, leader_facts)
    change(kube, "status", arbiter={})
    await durable_facts.write(kube, JOB, replace(NEW, committed=3), leader_facts)
    assert stored(kube) == replace(NEW, committed=3)


EMPTY = replace(OLD, members=())
"""Before the first plan of a start; its members are a and b."""


def change_spec(kube: MemoryApi) -> None:
    change(kube, "spec", worker={"image": "agent:2"})
    change(kube, "metadata", generation=JOB.generation + 1)


@pytest.mark.parametrize("is_late", [False, True], ids=["before the look", "after the look"])
async def test_the_first_members_are_not_written_for_another_spec(
    kube: MemoryApi, is_late: bool
) -> None:
    """The API server has taken a change that it would refuse once there is a plan."""
    change(kube, "status", arbiter=to_json(EMPTY))
    if is_late:
        before_apply(kube, lambda: change_spec(kube))
    else:
        change_spec(kube)
    with pytest.raises(NotWrittenError, match="spec has changed since the plan was made"):
        await durable_facts.write(kube, JOB, OLD, LeaderFacts(EMPTY))
    assert stored(kube) == EMPTY
    seen = replace(JOB, generation=JOB.generation + 1)
    await durable_facts.write(kube, seen, OLD, LeaderFacts(EMPTY))
    assert stored(kube) == OLD


@pytest.mark.parametrize("found", [OLD, replace(OLD, members=(), pipelines=())])
async def test_facts_that_bring_no_first_members_are_written_whatever_the_spec(
    kube: MemoryApi, found: Durable
) -> None:
    change(kube, "status", arbiter=to_json(found))
    change_spec(kube)
    await durable_facts.write(kube, JOB, replace(found, committed=3), LeaderFacts(found))
    assert stored(kube).committed == 3


@pytest.mark.parametrize(
    ("durable", "wanted"),
    [
        (Durable(), False),
        (EMPTY, False),
        (OLD, True),
        (replace(OLD, voters=OLD.members, pipelines=(OLD.members,)), True),
        # of a job that was suspended with this plan
        (replace(EMPTY, pipelines=(OLD.members,), outcome=Outcome.SUSPENDED), False),
    ],
)
def test_facts_with_members_are_known_as_the_api_server_knows_them(
    durable: Durable, wanted: bool
) -> None:
    assert durable_facts.has_members({"status": {"arbiter": to_json(durable)}}) is wanted
    assert bool(durable.members) is wanted
    assert not durable_facts.has_members({})
