"""The language of programs has a number, by which agents of another version are refused."""

from __future__ import annotations

import hashlib

from bamboo_core.model.ids import AgentId
from bamboo_core.model.items import Item, Kind
from bamboo_core.model.program import Instruction, Op, to_text
from bamboo_core.protocol.messages import LANGUAGE, Hello
from bamboo_proto.v1 import agent_pb2 as pb
from bamboo_wire import decode, encode

HELLO = Hello(AgentId("a-0"), "uid", "node", "zone", "machine", "1.2.3.4:5", "1.2.3.4:6")

DIGESTS = {1: "12ea624c47f66f11"}
"""Number -> digest of the words. If agents of the released version do not know the present words,
raise LANGUAGE, and add its digest here."""


def test_an_agent_tells_its_language() -> None:
    assert HELLO.language == LANGUAGE > 0
    assert decode.agent_message(encode.agent_message(HELLO)) == HELLO


def test_an_agent_from_before_it_had_a_number_speaks_language_0() -> None:
    message = encode.agent_message(HELLO)
    message.hello.ClearField("language")
    again = decode.agent_message(pb.AgentMessage.FromString(message.SerializeToString()))
    assert isinstance(again, Hello)
    assert again.language == 0


def test_new_words_come_with_a_new_number() -> None:
    every = [Instruction(op, 1, 2, 3, 4, ranges=((5, 6),)) for op in Op]
    items = [
        Item(kind=kind, step=1, lo=2, hi=3, index=4, part=5, agent=AgentId("a-0")) for kind in Kind
    ]
    words = f"{to_text(tuple(every))} {' '.join(map(str, items))}"
    assert DIGESTS[LANGUAGE] == hashlib.sha256(words.encode()).hexdigest()[:16], words
