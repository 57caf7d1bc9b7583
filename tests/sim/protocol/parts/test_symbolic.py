import pytest

from bamboo_core.model import claims
from bamboo_core.model.claims import DisputedError
from bamboo_core.model.ids import AgentId
from bamboo_core.model.items import Item
from bamboo_core.model.numerics import BatchShape
from bamboo_core.model.program import parse_instruction
from bamboo_sim.protocol.parts.symbolic import SymbolError, Symbolic, Vote, reference
from bamboo_sim.protocol.planted import rules_bits

BATCH = BatchShape(4, 2, 2)


def test_a_stage_of_all_layers_computes_the_reference():
    backend = Symbolic(AgentId("a"), 3, BATCH)
    program = ["INIT[0:3]"]
    for m in range(4):
        program += [f"F[0:3] m{m}", f"B[0:3] m{m}"]
    program += ["SLICE[0:3] 0:1 0:2", "SLICE[0:3] 1:2 0:2"]
    program += ["REDUCE[0:3] m0 0:2 0:1 1:2", "REDUCE[0:3] m1 0:2 0:1 1:2"]
    program += ["VOTE 0:3 0:3 0:2", "COMMIT {a}", "UPDATE[0:3] 0:3 0:2"]
    records = [backend.run(parse_instruction(line)) for line in program]
    weights, commits = reference(layers=3, batch=BATCH, steps=1)
    assert records[-2] == commits[0]
    assert backend.layers == dict(enumerate(weights[1]))


def test_the_reference_depends_on_leaf_size_and_on_the_attempt():
    def final(batch, salts=None):
        return reference(layers=2, batch=batch, steps=2, salts=salts)[0][2]

    assert final(BATCH) != final(BatchShape(4, 1, 2))
    assert final(BATCH) != final(BATCH, {0: 0, 1: 1})


def voted(cast):
    backend = Symbolic(AgentId("a"), 2, BATCH)
    for agent, vote in cast.items():
        backend.store[Item.vote(0, AgentId(agent))] = Vote(vote, {}, frozenset(), {})
    return backend.run(parse_instruction("COMMIT {" + ",".join(cast) + "}"))


def test_votes_that_differ_are_disputed():
    with pytest.raises(DisputedError) as found:
        voted({"a": {0: 1, 1: 2}, "b": {0: 3}})
    assert [(d.lo, d.is_of_gradients) for d in found.value.disputes] == [(0, True)]


def test_votes_must_agree(monkeypatch):
    monkeypatch.setattr(claims, "disputes", rules_bits.without_gradients)
    with pytest.raises(SymbolError, match="layer 0 of step 0 differ"):
        voted({"a": {0: 1, 1: 2}, "b": {0: 3}})


def test_votes_must_cover_every_layer():
    with pytest.raises(SymbolError, match=r"layers \[1\]"):
        voted({"a": {0: 1}})
