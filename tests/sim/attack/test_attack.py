"""A sample of the attack on the ports; benchmarks/security.py runs all of it."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from multiprocessing.connection import Connection

import pytest
from google.protobuf.message import DecodeError
from tests.rotation import in_turn

from bamboo_core.model.items import Kind, parse_item
from bamboo_proto.v1 import agent_pb2 as pb
from bamboo_sim.attack import data_port, floods, group_port, inputs, operator_port
from bamboo_sim.attack.tally import MOST_TOLD, Defects, Tally

CASES = 200


@pytest.mark.parametrize("seed", in_turn(8, range(8)))
def test_the_data_port(seed: int) -> None:
    found = data_port.run(CASES, seed)
    assert found["breaches"] == {}, found["told"]
    assert sum(found["cases"].values()) == CASES
    assert set(found["cases"]) == {"stranger", "insider", "stranger, TLS", "insider, TLS"}


@pytest.mark.parametrize("seed", in_turn(8, range(8)))
def test_the_operators_port(seed: int) -> None:
    found = operator_port.run(CASES, seed)
    assert found["breaches"] == {}, found["told"]
    assert sum(found["cases"].values()) >= CASES
    assert set(found["cases"]) >= {"planner", "reconnects", "long reports"}


def test_items_of_an_attack_are_in_the_language() -> None:
    """A renamed kind would end an attack, and only for the seeds that draw it."""
    rng = random.Random(0)
    kinds = {parse_item(inputs.item(rng)).kind for _ in range(1000)}
    assert {Kind.SUM, Kind.PIECE, Kind.RED} <= kinds


@pytest.mark.parametrize("seed", in_turn(8, range(8)))
def test_process_groups(seed: int) -> None:
    found = group_port.run(CASES, seed)
    assert found["breaches"] == {}, found["told"]
    assert sum(found["cases"].values()) == CASES
    assert set(found["cases"]) == {"as a sender", "as a receiver", "port of gloo"}
    assert found["pieces"] > 0


def log_an_exception_at_the_start() -> None:
    """In the victim's process."""
    made = Defects.of_process

    def of_process() -> Defects:
        found = made()
        try:
            raise ValueError("from within")
        except ValueError:
            logging.getLogger("bamboo").exception("survived")
        return found

    Defects.of_process = of_process  # type: ignore[method-assign, assignment]


def broken_operator(pipe: Connection) -> None:
    log_an_exception_at_the_start()
    operator_port.serve(pipe)


def broken_agent(pipe: Connection, encrypts: bool) -> None:
    log_an_exception_at_the_start()
    data_port.serve(pipe, encrypts)


def test_an_exception_that_the_operator_survives_is_a_breach() -> None:
    tally = asyncio.run(operator_port.Attack(1, broken_operator).run(1))
    assert "exception" in tally.breaches
    assert "from within" in tally.told[0]


def test_an_exception_that_an_agents_transport_survives_is_a_breach() -> None:
    tally = data_port.Attack(1, broken_agent).run(1)
    assert "exception" in tally.breaches
    assert "from within" in tally.told[0]


async def test_a_flood_that_makes_an_honest_client_wait_is_a_breach() -> None:
    tally = Tally()

    async def strike() -> None:
        await asyncio.sleep(0)

    async def look(after: str) -> bool:
        if after != "no flood":
            time.sleep(200 * usual_s)  # noqa: ASYNC251 - an operator that does nothing else
        await asyncio.sleep(0)
        return True

    usual_s = await floods.usual(look)
    await floods.attack(tally, "reconnects", strike, look, usual_s)
    assert tally.breaches == {"slow": 1}
    assert tally.cases["reconnects"] >= floods.ENOUGH


def test_growth_is_a_breach() -> None:
    tally = Tally(most_growth_mb=100)
    assert tally.judge({"peak_mb": 50.0, "defects": []}, "the beginning")
    assert tally.judge({"peak_mb": 150.0, "defects": []}, "a case")
    assert not tally.judge({"peak_mb": 151.0, "defects": []}, "a case")
    assert tally.breaches == {"memory": 1}


def test_the_same_seed_gives_the_same_bytes() -> None:
    def some(seed: int) -> list[bytes]:
        rng = random.Random(seed)
        return [
            inputs.first_bytes(rng, {"bamboo": 2, "fence": [0, 1, 1]}),
            inputs.segment(rng, {"i": "out[1]", "f": [0, 1, 1]}),
            inputs.message(rng),
        ]

    assert some(1) == some(1)
    assert some(1) != some(2)


def test_messages_of_all_kinds_are_made() -> None:
    rng, kinds = random.Random(1), set()
    for _ in range(300):
        try:
            kinds.add(pb.AgentMessage.FromString(inputs.message(rng)).WhichOneof("body"))
        except DecodeError:  # it was mutated
            continue
    assert kinds >= {field.name for field in pb.AgentMessage.DESCRIPTOR.fields}


def test_a_breach_is_counted_and_told() -> None:
    tally = Tally()
    for number in range(MOST_TOLD + 5):
        tally.breach("hang", str(number))
    assert tally.breaches == {"hang": MOST_TOLD + 5}
    assert len(tally.told) == MOST_TOLD
