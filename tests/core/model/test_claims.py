"""Claims: two agents that compute one forward must get one result."""

from __future__ import annotations

import pytest

from bamboo_core.model.claims import (
    COPIES,
    GRADIENTS,
    ClaimBook,
    Question,
    Said,
    about_gradient,
    about_losses,
    can_decide,
    disputes,
    has_unknown_input,
    name_of,
    odd_copies,
    odd_ones,
)
from bamboo_core.model.ids import AgentId
from bamboo_core.model.items import Item
from bamboo_core.model.program import parse_instruction
from bamboo_core.protocol.messages import Claim, Dispute

A, B, C, D = map(AgentId, "abcd")
LOW, HIGH = Item.prefix(3, (0, 2), 1, 2), Item.prefix(3, (2, 4), 0, 2)


@pytest.mark.parametrize("line", ["F[0:2] m1 @3", "F[0:2] m1 1:2 @3", "R[0:2] m1 1:2 @3"])
def test_an_owner_and_a_replica_use_one_name(line: str) -> None:
    assert name_of(parse_instruction(line)) == LOW


def test_agents_that_agree_or_are_alone_have_no_dispute() -> None:
    assert disputes({A: {LOW: Said(1, 2)}, B: {LOW: Said(1, 2), HIGH: Said(2, 9)}, C: {}}) == ()


def test_a_dispute_names_everyone_and_the_earliest_stage_comes_first() -> None:
    cast = {
        B: {HIGH: Said(7, 8), LOW: Said(1, 3)},
        A: {LOW: Said(1, 2), HIGH: Said(7, 9)},
        C: {LOW: Said(1, 2)},
    }
    claims = (Claim(A, 1, 2), Claim(B, 1, 3), Claim(C, 1, 2))
    assert disputes(cast) == (
        Dispute(0, 2, 1, claims),
        Dispute(2, 4, 0, (Claim(A, 7, 9), Claim(B, 7, 8))),
    )


def test_an_input_that_is_not_what_the_stage_before_has_made_is_a_dispute() -> None:
    above = HIGH._replace(index=1)
    assert disputes({A: {LOW: Said(1, 2)}, B: {above: Said(2, 8)}}) == ()
    assert disputes({B: {above: Said(2, 8)}}) == (), "nobody has claimed what went in"
    cast = {A: {LOW: Said(1, 2)}, B: {above: Said(3, 8)}}
    assert disputes(cast) == (Dispute(2, 4, 1, (Claim(B, 3, 8),)),)


def test_an_input_may_be_what_no_voter_has_made() -> None:
    above = HIGH._replace(index=1)
    low, made = {LOW: Said(1, 2)}, {LOW: Said(1, 3)}

    def is_unknown(*said: dict[Item, Said]) -> bool:
        return has_unknown_input(disputes(dict(zip((A, B, C, D), said, strict=False))))

    assert is_unknown(low, {above: Said(3, 8)}), "its maker is gone, and A got another result"
    assert is_unknown(low, {above: Said(2, 8)}, {above: Said(3, 9)})
    assert is_unknown(low, made, {above: Said(4, 8)})
    assert not is_unknown(low, made, {above: Said(2, 8)}, {above: Said(3, 9)}), "both have makers"
    assert not is_unknown(low, {above: Said(2, 8)}, {above: Said(2, 9)})
    assert not is_unknown({above: Said(2, 8)}, {above: Said(2, 9)}), "nobody has claimed it"
    assert not is_unknown(low, made, {HIGH: Said(2, 8)}), "another micro-batch"
    assert not is_unknown({about_gradient(3, 1): Said(0, 1)}, {about_gradient(3, 1): Said(0, 2)})


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
    assert book.of(4) == {later: Said(1, 2)}
    assert book.add(LOW, 1, 3)
    book.forget()
    assert book.of(0) == {}


def test_a_copy_is_independent() -> None:
    book = ClaimBook()
    book.copy().add(LOW, 1, 2)
    assert book.made == {}


def differing(*claims: Claim) -> Dispute:
    return Dispute(0, 2, 1, claims)


def test_the_older_claims_count_once_a_voter_has_computed_the_forward_in_question() -> None:
    question = Question(3, differing(Claim(A, 1, 2, 9), Claim(B, 1, 3, 9)))
    assert (question.name, question.agents) == (LOW, {A, B})
    assert disputes({C: {HIGH: Said(3, 4)}}, question) == ()
    assert disputes({C: {LOW._replace(step=4): Said(1, 5)}}, question) == ()
    (found,) = disputes({C: {LOW: Said(1, 3, 9)}}, question)
    assert set(found.claims) == {*question.dispute.claims, Claim(C, 1, 3, 9)}
    assert odd_ones(found) == {A}


def test_a_voter_in_question_has_only_its_newest_claim() -> None:
    question = Question(3, differing(Claim(A, 1, 2, 9), Claim(B, 1, 3, 9)))
    (found,) = disputes({A: {LOW: Said(1, 2, 9)}}, question)
    assert found.claims == (Claim(A, 1, 2, 9), Claim(B, 1, 3, 9))


def test_a_third_can_decide_only_about_one_input_and_equal_layers() -> None:
    assert can_decide(differing(Claim(A, 1, 2, 9), Claim(B, 1, 3, 9)))
    assert not can_decide(differing(Claim(A, 1, 2), Claim(B, 1, 3))), "the layers are not known"
    assert not can_decide(differing(Claim(A, 1, 2, 9), Claim(B, 1, 3, 8)))
    assert not can_decide(differing(Claim(A, 1, 2, 9), Claim(B, 4, 3, 9)))
    assert not can_decide(differing(Claim(A, 1, 2, 9))), "what went in is not what was sent"


@pytest.mark.parametrize(
    ("claims", "odd"),
    [
        ([Claim(A, 1, 2, 9), Claim(B, 1, 3, 9), Claim(C, 1, 3, 9)], {A}),
        ([Claim(A, 1, 2, 9), Claim(B, 1, 3, 9), Claim(C, 1, 4, 9)], set()),
        ([Claim(A, 1, 2, 9), Claim(B, 1, 3, 9)], set()),
        ([Claim(A, 1, 2, 9), Claim(B, 1, 3, 9), Claim(C, 1, 3, 8)], set()),
        ([Claim(A, 1, 2, 9), Claim(B, 1, 3, 9), Claim(C, 5, 3, 9)], set()),
        ([Claim(A, 1, 2), Claim(B, 1, 3), Claim(C, 1, 3)], set()),
        ([Claim(A, 1, 2, 9), Claim(B, 1, 2, 9), Claim(C, 1, 3, 9), Claim(D, 1, 3, 9)], set()),
        ([Claim(A, 1, 2, 9), Claim(B, 1, 3, 9), Claim(C, 1, 3, 9), Claim(D, 1, 3, 9)], {A}),
    ],
)
def test_the_majority_of_equal_inputs_and_layers_decides(
    claims: list[Claim], odd: set[AgentId]
) -> None:
    assert odd_ones(differing(*claims)) == odd


def test_claims_name_the_layers_in_the_step_that_is_computed_again() -> None:
    book = ClaimBook()
    assert not book.is_again(3)
    book.add(LOW, 1, 2)
    book.retract()
    assert book.copy().is_again(5), "the next step that is computed, whichever it is"
    assert book.is_again(3)
    assert not book.is_again(4)
    assert book.add(LOW, 1, 2, 9)
    assert book.of(3) == {LOW: Said(1, 2, 9)}
    book.forget()
    assert not book.is_again(3)


def test_copies_of_a_layer_must_be_equal_and_stand_before_forwards() -> None:
    layer = Item.ver(3, 5)
    cast = {A: {layer: Said(0, 7), LOW: Said(1, 2)}, B: {layer: Said(0, 8), LOW: Said(1, 4)}}
    first, second = disputes(cast)
    assert first == Dispute(5, 6, -1, (Claim(A, 0, 7), Claim(B, 0, 8)))
    assert first.is_of_copies
    assert not second.is_of_copies
    assert disputes({A: {layer: Said(0, 7)}, B: {layer: Said(0, 7)}}) == ()


@pytest.mark.parametrize(
    ("digests", "odd"),
    [((1, 2), ""), ((1, 2, 2), "a"), ((1, 1, 2, 2), ""), ((1, 2, 3), ""), ((2, 1, 3, 1, 1), "ac")],
)
def test_a_copy_is_wrong_if_the_majority_differs(digests: tuple[int, ...], odd: str) -> None:
    claims = tuple(Claim(AgentId("abcde"[n]), 0, x) for n, x in enumerate(digests))
    assert odd_copies(Dispute(5, 6, -1, claims)) == set(odd)


def test_gradients_that_differ_stand_last_and_no_third_can_decide() -> None:
    gradient, losses = about_gradient(3, 1), about_losses(3, 9)
    assert gradient != losses
    cast = {
        A: {gradient: Said(0, 7), losses: Said(0, 1), Item.ver(3, 5): Said(0, 7), LOW: Said(1, 2)},
        B: {gradient: Said(0, 8), losses: Said(0, 2), Item.ver(3, 5): Said(0, 8), LOW: Said(1, 4)},
    }
    found = disputes(cast)
    assert [(d.lo, d.microbatch) for d in found] == [
        (5, COPIES),
        (LOW.lo, LOW.index),
        (1, GRADIENTS),
        (8, GRADIENTS),
    ]
    assert [d.is_of_gradients for d in found] == [False, False, True, True]
    assert not found[2].is_of_copies
    assert not can_decide(found[2])
