"""What the members of a plan are told."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.core.arbiter.fleet import spec
from tests.core.planning.test_planner import A0, A1, HALVES, decide, proceed, request_of, stopped

from bamboo_core.model.ids import AgentId
from bamboo_core.model.program import Instruction, Op
from bamboo_core.planning import messages
from bamboo_core.protocol.messages import Peer


def test_a_peer_is_named_with_its_addresses_key_zone_and_node() -> None:
    request = request_of(spec())
    peer = Peer(A1, "a1:1", "a1:2", b"a1", "z1", "a1")
    directive = decide(request).directives[A0]
    assert directive.peers == (peer,)
    assert (directive.key, directive.node) == (b"a0", "a0")
    assert proceed(request).directives[A0].peers == (peer,)


def test_agents_watch_two_neighbours_on_each_side() -> None:
    request = request_of(spec(pipelines=2, stages=4, steps=4), layers=4)
    directives = decide(request).directives
    members = sorted(directives)
    for i, agent in enumerate(members):
        near = {members[(i + j) % len(members)] for j in (-2, -1, 1, 2)}
        assert near <= {p.agent for p in directives[agent].peers}
        far = AgentId(members[(i + 4) % len(members)])
        talks = {x.peer for x in directives[agent].resume}
        assert (far in {p.agent for p in directives[agent].peers}) is (far in talks)


@pytest.mark.parametrize(("above", "learners"), [(95, (A1,)), (96, ())])
def test_a_newcomer_learns_if_the_others_would_wait_for_more_bytes(
    above: float, learners: tuple[AgentId, ...]
) -> None:
    """Weights and Adam's two states of 4 layers of 8 bytes."""
    request = stopped(spec(steps=9), {"a0": dict.fromkeys(range(4), 2), "a1": {}}, 2)
    grid = ((A0, AgentId("a2")),)
    asked = replace(request, grid=grid, costs=(HALVES,) * 4, catch_up_above_bytes=above)
    result = decide(asked)
    assert tuple(result.plan.learners) == learners
    if learners:
        assert result.directives[A1].wanted == ((0, 4),)


@pytest.mark.parametrize("part", ["resume", "steady", "final"])
def test_an_agent_stays_connected_to_all_that_any_of_its_programs_talks_to(part: str) -> None:
    request = request_of(spec(pipelines=2, stages=4, steps=4), layers=4)
    decision = decide(request)
    members = sorted(decision.directives)
    far = members[4]
    program = {members[0]: (Instruction(Op.RECV, peer=far),)}
    programs = {name: program if name == part else {} for name in ("resume", "steady", "final")}
    first = {
        a: replace(d, resume=programs["resume"].get(a, ())) for a, d in decision.directives.items()
    }
    known = request.participants
    out = messages.continuations(
        decision.plan, first, programs["steady"], programs["final"], participants=known, lanes={}
    )
    assert [far in {p.agent for p in out[a].peers} for a in members[:2]] == [True, False]


@pytest.mark.parametrize("steps", [2, 9])
def test_only_a_suspension_leaves_the_validation_out(steps: int) -> None:
    """An interrupted epilogue validates; so does no end of a suspended job."""
    held = {"a0": {0: 2, 1: 2}, "a1": {2: 2, 3: 2}}
    request = replace(stopped(spec(steps=steps, every=0), held, 2), is_last=steps > 2)
    result = decide(request)
    programs = [d.resume for d in result.directives.values()]
    if steps > 2:
        programs = [c.final for c in proceed(request).directives.values()]
    assert any(x.op is Op.SAVE for p in programs for x in p)
    assert any(x.op is Op.V for p in programs for x in p) is (steps == 2)
