"""The attack on an agent's liveness port.

An honest peer has a connection all the time and must never seem lost. Another one proves its key
anew after each hundred cases.
"""

from __future__ import annotations

import hashlib
import hmac
import random
import socket
import time
from typing import Any

from bamboo_agent.supervisor.liveness import Liveness
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import Peer
from bamboo_sim.attack import inputs
from bamboo_sim.attack.strangers import PATIENCE_S, Attack, Inside, Victim

VICTIM, STEADY, RETURNING = AgentId("victim"), AgentId("a-steady"), AgentId("b-returning")
KEYS = {VICTIM: b"key of the victim", STEADY: b"key of one peer", RETURNING: b"key of another"}


async def start(inside: Inside) -> dict[str, int]:
    """A supervisor's liveness, and what it hears."""
    told = inside.told
    told |= {"heard": 0, "closed": 0, "refused": 0}

    def heard(agent: AgentId) -> None:
        told["heard"] += agent == STEADY
        told["refused"] = liveness.refused

    def closed(agent: AgentId) -> None:
        told["closed"] += agent == STEADY

    liveness = Liveness(VICTIM, on_heard=heard, on_closed=closed)
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    await liveness.start(listening)
    peers = tuple(Peer(agent, "", "127.0.0.1:1", KEYS[agent]) for agent in (STEADY, RETURNING))
    liveness.watch(peers, KEYS[VICTIM])
    return {"liveness": port}


def prove(port: int, agent: AgentId) -> socket.socket:
    """A connection of an honest peer. ValueError, OSError: it is refused."""
    sock = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
    nonce = "f" * 32
    sock.sendall(f"hello {agent} {nonce}\n".encode())
    words = sock.makefile("rb").readline().decode().split()
    if len(words) != 3:
        raise ValueError(f"the answer to {agent} is {words}")
    _, theirs, mac = words

    def made(role: str, key: bytes) -> str:
        text = f"bamboo-liveness {role} {agent} {nonce} {VICTIM} {theirs}"
        return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()

    if mac != made("accept", KEYS[VICTIM]):
        raise ValueError("the victim does not prove its key")
    sock.sendall(f"proof {made('dial', KEYS[agent])}\n".encode())
    return sock


class _Peers:
    """The honest ones."""

    def __init__(self, victim: Victim) -> None:
        self._victim, self._port = victim, victim.ports["liveness"]
        self.steady = prove(self._port, STEADY)
        self._heard = 0

    def look(self, state: dict[str, Any]) -> None:
        """ValueError, OSError: one does not get through."""
        prove(self._port, RETURNING).close()
        self.steady.sendall(b".")
        deadline = time.monotonic() + PATIENCE_S
        while state["heard"] <= self._heard and not state["closed"]:  # the byte is on its way
            if time.monotonic() > deadline:
                break
            state |= self._victim.state()
        if state["closed"] or state["heard"] <= self._heard:
            raise ValueError(f"the steady peer is not heard: {state}")
        self._heard = state["heard"]


def run(cases: int, seed: int) -> dict[str, Any]:
    """The figures of one attack."""
    victim = Victim(start)
    peers = _Peers(victim)

    def say(rng: random.Random) -> bytes:
        return inputs.greeting(rng, rng.choice((STEADY, RETURNING)))

    attack = Attack(victim, seed, say=say, look=peers.look)
    tally = attack.run(cases)
    peers.steady.close()
    return tally.figures()
