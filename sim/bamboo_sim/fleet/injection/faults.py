"""The faults of one fleet's connections and disks, as its test orders them.

fleet.faults.cut("a", "b")                   nothing arrives, in both directions
fleet.faults.cut("a", "b", one_way=True)     nothing of a arrives at b
fleet.faults.trickle("a", "b", 1.0)          one byte per second passes, in both directions
fleet.faults.delay("a", 0.3)                 frames and heartbeats reach a that much later
fleet.faults.reset()                         RST of every connection of every agent
fleet.faults.truncate("a", "b")              a's link to b ends in the middle of a frame
fleet.faults.slow_disk(0.2)                  every call to the checkpoint storage takes longer
fleet.faults.fail_disk()                     ... fails
fleet.faults.fill_disk()                     ... fails if it makes a file
fleet.faults.fill_disk(100)                  each file takes 100 bytes, and is left half-written
fleet.faults.take_away(folder)               the folder is renamed away
fleet.faults.heal()                          none of these any more
fleet.faults.effects("a")                    how often each has acted on a
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from bamboo_sim.fleet.injection import state
from bamboo_sim.fleet.injection.effects import Effect, Effects
from bamboo_sim.fleet.injection.state import Disk, State

_ROLES = ("worker", "supervisor")
_AWAY = ".away"
"""Follows the name of a folder that was taken away."""


class Faults:
    """``folder`` holds the state that agents read when they start."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.state = State()
        self.counted = Effects(folder)
        self._orders = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        state.write(folder, self.state)

    def close(self) -> None:
        """Give no more orders."""
        self._orders.close()

    def address_of(self, agent: str) -> str:
        """The agent's own IPv4 address on this machine."""
        known = self.state.addresses
        if agent not in known:
            number = len(known) + 1
            address = f"127.77.{number // 250}.{number % 250 + 1}"
            self.state = replace(self.state, addresses={**known, agent: address})
            state.write(self.folder, self.state)
        return self.state.addresses[agent]

    def effects(self, *agents: str) -> Counter[Effect]:
        """How often each effect has happened to these agents (none: to all, and the operator)."""
        return self.counted.of(*agents)

    # ------------------------------------------------------------ network

    def cut(self, sender: str, receiver: str, *, one_way: bool = False) -> None:
        """Lose what the sender sends to the receiver, and the other way round unless one_way.

        Connections stay open until TCP itself gives them up.
        """
        pairs = [(sender, receiver)] if one_way else [(sender, receiver), (receiver, sender)]
        receivers = [b for _, b in pairs]
        self.counted.ordered(f"cut {sender} - {receiver}", receivers, Effect.LOST_SEGMENT)
        self._become(cuts=tuple(dict.fromkeys((*self.state.cuts, *pairs))))

    def trickle(self, one: str, other: str, rate: float = 1.0) -> None:
        """Let only so many bytes per second pass between the workers of two agents, in both
        directions. Signs of life are not late."""
        both = [(one, other), (other, one)]
        self.counted.ordered(f"trickle {one} - {other}", [one, other], Effect.TRICKLED)
        others = [x for x in self.state.trickles if x[:2] not in both]
        self._become(trickles=(*others, *((a, b, rate) for a, b in both)))

    def delay(self, agent: str, seconds: float) -> None:
        """Let frames and heartbeats of its peers reach the agent later."""
        effects = (Effect.LATE_FRAME, Effect.LATE_HEARTBEAT)
        self.counted.ordered(f"delay {agent} by {seconds:g} s", [agent], *effects)
        self._become(late_s={**self.state.late_s, agent: seconds})

    def reset(self, agents: Collection[str] | None = None) -> None:
        """Reset all connections of these agents (None: of all), sessions with the operator too."""
        chosen = sorted(self.state.addresses if agents is None else agents)
        self.counted.ordered(f"reset {' '.join(chosen)}", chosen, Effect.RESET)
        for agent in chosen:
            self._order(agent, {"do": "reset", "peers": None})

    def reset_link(self, one: str, other: str) -> None:
        """Reset all connections between two agents."""
        self.counted.ordered(f"reset {one} - {other}", [one], Effect.RESET)
        self._order(one, {"do": "reset", "peers": [self.address_of(other)]})

    def truncate(self, sender: str, receiver: str) -> None:
        """Close the sender's link to the receiver in the middle of the next frame."""
        self.counted.ordered(f"truncate {sender} - {receiver}", [sender], Effect.CUT_FRAME)
        self._order(sender, {"do": "truncate", "peers": [receiver]})

    def heal(self) -> None:
        """End all cuts, trickles, delays and faults of disks, and truncations that no frame has
        met. OSError if something else is in the place of a folder that was taken away."""
        if away := self.state.disk.away:
            os.rename(f"{away}{_AWAY}", away)
        self._become(cuts=(), trickles=(), late_s={}, disk=Disk())
        for agent in self.state.addresses:
            self._order(agent, {"do": "truncate", "peers": None})

    # ------------------------------------------------------------ disks

    def slow_disk(self, seconds: float) -> None:
        """Let every call to the checkpoint storage take so much longer, for all agents."""
        text = f"slow disk of {seconds:g} s"
        self.counted.ordered(text, self.state.addresses, Effect.SLOW_DISK)
        self._become(disk=replace(self.state.disk, delay_s=seconds))

    def fail_disk(self) -> None:
        """Let every call to the checkpoint storage fail, for all agents."""
        self.counted.ordered("failing disk", self.state.addresses, Effect.FAILED_DISK)
        self._become(disk=replace(self.state.disk, fails=True))

    def fill_disk(self, room: int = 0) -> None:
        """Let no file be made in the checkpoint storage, for all agents. room: bytes that each file
        takes all the same before its write fails."""
        self.counted.ordered("full disk", self.state.addresses, Effect.FULL_DISK)
        self._become(disk=replace(self.state.disk, is_full=True, room=room))

    def take_away(self, folder: Path) -> None:
        """Rename the folder of the checkpoints away, or another one that a link in its path leads
        to. Agents that write make a folder again, but not behind a link."""
        text = f"{folder.name} away"
        self.counted.ordered(text, self.state.addresses, Effect.ABSENT_FOLDER)
        self._become(disk=replace(self.state.disk, away=str(folder)))
        os.rename(folder, f"{folder}{_AWAY}")

    # ------------------------------------------------------------ orders

    def _become(self, **changed: Any) -> None:
        self.state = replace(self.state, **changed)
        state.write(self.folder, self.state)
        for agent in self.state.addresses:
            self._order(agent, {"do": "load"})

    def _order(self, agent: str, order: dict[str, Any]) -> None:
        for role in _ROLES:
            with contextlib.suppress(OSError):  # it has ended, or reads the state when it starts
                self._orders.sendto(
                    json.dumps(order).encode(), state.port(self.folder, agent, role)
                )
