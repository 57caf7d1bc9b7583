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
    """What every call to the checkpoint storage suffers."""

    delay_s: float = 0.0
    fails: bool = False


@dataclass(frozen=True)
class State:
    """addresses: agent -> its IPv4 address; cuts: (sender, receiver) pairs between which nothing
    arrives; late_s: agent -> how much later frames and heartbeats reach it, in seconds."""

    addresses: dict[str, str] = field(default_factory=dict)
    cuts: tuple[tuple[str, str], ...] = ()
    late_s: dict[str, float] = field(default_factory=dict)
    disk: Disk = Disk()

    def lost_senders(self, receiver: str) -> frozenset[str]:
        """Addresses whose segments do not reach the receiver."""
        return frozenset(self.addresses[a] for a, b in self.cuts if b == receiver)


def write(folder: Path, state: State) -> None:
    """Replace the state at once."""
    new = folder / "state.new"
    new.write_text(json.dumps(asdict(state)))
    os.replace(new, folder / "state.json")


def read(folder: Path) -> State:
    """The state as written last."""
    values = json.loads((folder / "state.json").read_text())
    cuts = tuple((str(a), str(b)) for a, b in values["cuts"])
    return State(values["addresses"], cuts, values["late_s"], Disk(**values["disk"]))


def port(folder: Path, agent: str, role: str) -> str:
    """The abstract Unix socket at which a process takes orders. role: "worker", "supervisor"."""
    return "\0bamboo-fleet-" + hashlib.sha256(f"{folder}/{agent}.{role}".encode()).hexdigest()[:32]
