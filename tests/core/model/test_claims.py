"""Claims: two agents that compute one forward must get one result."""

from __future__ import annotations

import pytest

from bamboo_core.model.claims import ClaimBook, disputes, name_of
from bamboo_core.model.ids import AgentId
from bamboo_core.model.items import Item
from bamboo_core.model.program import parse_instruction
from bamboo_core.protocol.messages import Claim, Dispute

A, B, C = map(AgentId, "abc")
LOW, HIGH = Item.prefix(3, (0, 2), 1, 2), Item.prefix(3, (2, 4), 0, 2)


@pytest.mark.parametrize("line", ["F[0:2] m1 @3", "F[0:2] m1 1:2 @3", "R[0:2] m1 1:2 @3"])
def test_an_owner_and_a_replica_use_one_name(line: str) -> None:
    assert name_of(parse_instruction(line)) == LOW


def test_agents_that_agree_or_are_alone_have_no_dispute() -> None:
    assert disputes({A: {LOW: (1, 2)}, B: {LOW: (1, 2), HIGH: (2, 9)}, C: {}}) == ()


def test_a_dispute_names_everyone_and_the_earliest_stage_comes_first() -> None:
    cast = {B: {HIGH: (7, 8), LOW: (1, 3)}, A: {LOW: (1, 2), HIGH: (7, 9)}, C: {LOW: (1, 2)}}
    claims = (Claim(A, 1, 2), Claim(B, 1, 3), Claim(C, 1, 2))
    assert disputes(cast) == (
        Dispute(0, 2, 1, claims),
        Dispute(2, 4, 0, (Claim(A, 7, 9), Claim(B, 7, 8))),
    )


def test_an_input_that_is_not_what_the_stage_before_has_made_is_a_dispute() -> None:
    above = HIGH._replace(index=1)
    assert disputes({A: {LOW: (1, 2)}, B: {above: (2, 8)}}) == ()
    assert disputes({B: {above: (2, 8)}}) == (), "nobody has claimed what went in"
    cast = {A: {LOW: (1, 2)}, B: {above: (3, 8)}}
    assert disputes(cast) == (Dispute(2, 4, 1, (Claim(B, 3, 8),)),)


def test_an_agent_contradicts_itself_if_one_input_gives_two_results() -> None:
    book = ClaimBook()
    assert book.add(LOW, 1, 2)
    book.retract()
    assert book.of(3) == {}, "claims of a void step do not count"
    assert book.copy().add(LOW, 1, 2)
    assert book.copy().add(LOW, 5, 6), "its input was wrong"
    assert not book.add(LOW, 1, 3)


def test_it_remembers_what_it_said_before_several_voids() -> None:
    book = ClaimBook()
    for _ in range(3):
        assert book.add(LOW, 1, 2)
        book.retract()
    assert not book.add(LOW, 1, 3)


def test_claims_of_earlier_steps_are_forgotten() -> None:
    book = ClaimBook()
    later = LOW._replace(step=4)
    book.add(LOW, 1, 2)
    book.retract()
    book.add(later, 1, 2)
    assert book.of(4) == {later: (1, 2)}
    assert book.add(LOW, 1, 3)
    book.forget()
    assert book.of(0) == {}


def test_a_copy_is_independent() -> None:
    book = ClaimBook()
    book.copy().add(LOW, 1, 2)
    assert book.made == {}
