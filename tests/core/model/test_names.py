import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo_core.model.ids import AgentId
from bamboo_core.model.items import Item, Kind, parse_item
from bamboo_core.model.program import Instruction, Op, parse, parse_instruction, to_text

numbers = st.integers(0, 300)
agents = st.sampled_from(["", "a", "job-3", "x.y-1"]).map(AgentId)
ranges = st.tuples(numbers, st.integers(1, 300))
items = st.builds(
    Item,
    kind=st.sampled_from(Kind),
    step=st.integers(-2, 50),
    lo=numbers,
    hi=numbers,
    index=numbers,
    part=numbers,
    agent=agents,
)


@given(items)
def test_an_items_text_says_all_of_it(item):
    assert parse_item(str(item)) == item


@given(st.lists(st.builds(
    Instruction,
    op=st.sampled_from([Op.F, Op.SEND, Op.VOTE, Op.UPDATE, Op.SAVE]),
    step=st.integers(-1, 9),
    lo=numbers,
    hi=st.integers(1, 300),
    index=st.just(0),
    item=st.none() | items,
    peer=agents,
    ranges=st.lists(ranges, max_size=3).map(tuple),
    agents=st.lists(agents.filter(bool), max_size=3).map(tuple),
    every=st.integers(0, 9),
), max_size=5))  # fmt: skip
def test_a_programs_text_says_all_of_it(program):
    assert parse(to_text(program)) == tuple(program)


@pytest.mark.parametrize("text", ["", "nothing[0]", "out[x]", "out[1] m1 extra?"])
def test_what_is_no_item_is_refused(text):
    with pytest.raises(ValueError, match="not an item"):
        parse_item(text)


@pytest.mark.parametrize("text", ["", "JUMP", "F[0:1] ?", "F[0:1]m1"])
def test_what_is_no_instruction_is_refused(text):
    with pytest.raises(ValueError, match="not an instruction"):
        parse_instruction(text)
