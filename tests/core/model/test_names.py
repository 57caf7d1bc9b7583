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
    leaves=numbers,
    slices=numbers,
)


@given(items)
def test_items_round_trip_through_text(item):
    assert parse_item(str(item)) == item


def words_of_item(item):
    """The form of an item, word by word: it is on the wire, so it never changes."""
    where = f"[{item.lo}:{item.hi}]" if item.hi else (f"[{item.lo}]" if item.lo else "")
    words = [
        (True, item.kind.name.lower() + where),
        (item.leaves, f"{item.index}:{item.index + item.leaves}"),
        (item.index and not item.leaves, f"m{item.index}"),
        (item.slices, f"{item.part}/{item.slices}"),
        (item.part and not item.slices, f"#{item.part}"),
        (item.agent, item.agent),
        (item.step, f"@{item.step}"),
    ]
    return " ".join(word for is_there, word in words if is_there)


def words_of(x):
    """The form of an instruction, word by word."""
    is_indexed = x.op in {Op.F, Op.R, Op.B, Op.I, Op.W, Op.V, Op.FOLD, Op.REDUCE}
    words = [
        (True, x.op.value + (f"[{x.lo}:{x.hi}]" if x.hi else "")),
        (is_indexed, f"m{x.index}"),
        (x.item, f"({words_of_item(x.item)})" if x.item else ""),
        (x.peer, ("<" if x.op is Op.RECV else ">") + x.peer),
        *((True, f"{lo}:{hi}") for lo, hi in x.ranges),
        (x.agents, "{" + ",".join(x.agents) + "}"),
        (x.step, f"@{x.step}"),
        (x.every, f"/{x.every}"),
    ]
    return " ".join(word for is_there, word in words if is_there)


@given(items)
def test_the_text_of_an_item_has_these_words(item):
    assert str(item) == words_of_item(item)


@given(st.builds(
    Instruction,
    op=st.sampled_from(Op),
    step=st.integers(-1, 9),
    lo=numbers,
    hi=numbers,
    index=numbers,
    item=st.none() | items,
    peer=agents,
    ranges=st.lists(ranges, max_size=3).map(tuple),
    agents=st.lists(agents.filter(bool), max_size=3).map(tuple),
    every=st.integers(0, 9),
))  # fmt: skip
def test_the_text_of_an_instruction_has_these_words(instruction):
    assert str(instruction) == words_of(instruction)
    assert to_text((instruction, instruction)) == 2 * f"{words_of(instruction)}\n"


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
def test_programs_round_trip_through_text(program):
    assert parse(to_text(program)) == tuple(program)


@pytest.mark.parametrize("text", ["", "nothing[0]", "out[x]", "out[1] m1 extra?"])
def test_text_that_is_not_an_item_is_rejected(text):
    with pytest.raises(ValueError, match="not an item"):
        parse_item(text)


@pytest.mark.parametrize("text", ["", "JUMP", "F[0:1] ?", "F[0:1]m1"])
def test_text_that_is_not_an_instruction_is_rejected(text):
    with pytest.raises(ValueError, match="not an instruction"):
        parse_instruction(text)


CUT = (2, 5)


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (Item.act(1, CUT, 3), "act[2:5] m3 @1"),
        (Item.out(1, 2, 3), "out[2] m3 @1"),
        (Item.ingrad(1, 2, 3), "ingrad[2] m3 @1"),
        (Item.partial(1, CUT, 3, 4), "part[2:5] m3 #4 @1"),
        (Item.sum(1, CUT, (3, 5)), "sum[2:5] 3:5 @1"),
        (Item.piece(1, CUT, (0, 4), 2, 3), "piece[2:5] 0:4 2/3 @1"),
        (Item.red(1, CUT, 0, 4), "red[2:5] 0/4 @1"),
        (Item.vote(1, AgentId("a")), "vote a @1"),
        (Item.commit(1), "commit @1"),
        (Item.ver(1, 2), "ver[2:3] @1"),
        (Item.eval(1, 2, 3), "eval[2] m3 @1"),
        (Item.score(1, 3), "score m3 @1"),
        (Item.file(1, 2), "file[2:3] @1"),
    ],
)
def test_each_kind_has_a_constructor(item, text):
    assert str(item) == text
    assert parse_item(text) == item


def test_constructors_cover_all_kinds():
    made = {name for name in vars(Item) if isinstance(vars(Item)[name], staticmethod)}
    assert made - {"__new__"} == {kind.name.lower() for kind in Kind} - {"part"} | {"partial"}
