"""The faults in force, as a file that all agents of a fleet read."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

FOLDER_VARIABLE = "BAMBOO_FLEET_FAULTS"


@dataclass(frozen=True)
class Disk:
    """What every call to the checkpoint storage suffers. is_full: no file can be made, or, if
    there is ``room``, none with more bytes than that: a larger one is left half-written; away: the
    folder that was renamed away; empty: none was."""

    delay_s: float = 0.0
    fails: bool = False
    is_full: bool = False
    room: int = 0
    away: str = ""


@dataclass(frozen=True)
class State:
    """addresses: agent -> its IPv4 address; cuts: (sender, receiver) pairs between which nothing
    arrives; trickles: (sender, receiver, bytes per second that pass between them); late_s: agent ->
    how much later frames and heartbeats reach it, in seconds."""

    addresses: dict[str, str] = field(default_factory=dict)
    cuts: tuple[tuple[str, str], ...] = ()
    trickles: tuple[tuple[str, str, float], ...] = ()
    late_s: dict[str, float] = field(default_factory=dict)
    disk: Disk = Disk()

    def lost_senders(self, receiver: str) -> frozenset[str]:
        """Addresses whose segments do not reach the receiver."""
        return frozenset(self.addresses[a] for a, b in self.cuts if b == receiver)

    def rate(self, sender: str, receiver: str) -> float:
        """Bytes per second that pass; 0: as many as can."""
        return next((x for a, b, x in self.trickles if (a, b) == (sender, receiver)), 0.0)


def write(folder: Path, state: State) -> None:
    """Replace the state at once."""
    new = folder / "state.new"
    new.write_text(json.dumps(asdict(state)))
    os.replace(new, folder / "state.json")


def read(folder: Path) -> State:
    """The state as written last."""
    values = json.loads((folder / "state.json").read_text())
    cuts = tuple((str(a), str(b)) for a, b in values["cuts"])
    trickles = tuple((str(a), str(b), float(x)) for a, b, x in values["trickles"])
    disk = Disk(**values["disk"])
    return State(values["addresses"], cuts, trickles, values["late_s"], disk)


def port(folder: Path, agent: str, role: str) -> str:
    """The abstract Unix socket at which a process takes orders. role: "worker", "supervisor"."""
    return "\0bamboo-fleet-" + hashlib.sha256(f"{folder}/{agent}.{role}".encode()).hexdigest()[:32]
