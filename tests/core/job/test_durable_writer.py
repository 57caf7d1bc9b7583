"""What a leader writes next, and what its writes may replace."""

from dataclasses import replace

import pytest

from bamboo_core.arbiter_state.durable import Durable, to_json
from bamboo_core.arbiter_state.events import Persist, Persisted
from bamboo_core.job.durable_writer import DurableWriter, LeaderFacts, OvertakenError
from bamboo_core.model.ids import Fence

OLD = Durable(term=1, plan=Fence(0, 1, 4))
NEW = replace(OLD, term=2)


def facts(number: int) -> Durable:
    return replace(NEW, committed=number)


def test_newer_facts_replace_those_that_wait():
    writer = DurableWriter()
    assert writer.put(Persist(facts(1), 1))
    assert writer.next() == facts(1)
    assert not writer.put(Persist(facts(2), 2))
    assert not writer.put(Persist(facts(3), 3))
    assert writer.written() == Persisted(1)
    assert writer.next() == facts(3)
    assert writer.written() == Persisted(3)
    assert writer.next() is None
    assert not writer.is_busy


def test_a_failed_write_is_repeated_with_the_newest_facts():
    writer = DurableWriter()
    writer.put(Persist(facts(1), 1))
    assert writer.next() == writer.next() == facts(1)
    writer.put(Persist(facts(2), 2))
    assert writer.next() == facts(2)
    assert writer.written() == Persisted(2)


def test_a_restarted_arbiter_does_not_hear_of_what_it_has_not_asked_for():
    writer = DurableWriter()
    writer.put(Persist(facts(1), 1))
    writer.next()
    writer.drop()
    assert not writer.put(Persist(facts(2), 1))
    assert writer.written() is None
    assert writer.next() == facts(2)
    assert writer.written() == Persisted(1)
    writer.put(Persist(facts(3), 2))
    writer.next()
    writer.drop()
    assert writer.next() is None
    assert writer.put(Persist(facts(4), 3))


def test_nothing_is_written_after_the_end():
    writer = DurableWriter()
    writer.put(Persist(facts(1), 1))
    writer.next()
    writer.end()
    assert not writer.is_busy
    assert writer.next() is None


def test_the_first_write_replaces_only_what_the_leader_began_from():
    leader_facts = LeaderFacts(OLD, "new")
    leader_facts.check(to_json(OLD) | {"writer": "old"}, NEW)
    leader_facts.check({}, NEW)
    leader_facts.check(leader_facts.body(facts(3)), NEW)
    late = replace(OLD, committed=2)
    with pytest.raises(OvertakenError, match=r"term 1 has written .*; ours, 2, began from term 1"):
        leader_facts.check(to_json(late) | {"writer": "old"}, NEW)
    with pytest.raises(OvertakenError, match="unreadable"):
        leader_facts.check({"cut": 3}, NEW)
