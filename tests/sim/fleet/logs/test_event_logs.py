"""What is read from the event logs of agents."""

from __future__ import annotations

import json
from pathlib import Path

from bamboo_sim.fleet.logs.event_logs import step_ends


def test_ends_of_steps(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = [
        {"agent": "a", "layers": 2},
        {"at": 1.5, "effects": ["run UPDATE", "ended CommitRecord(step=0)"]},
        {"at": 2.0, "effects": ["run FORWARD"]},
        {"at": 2.5, "effects": ["ended CommitRecord(step=1)"]},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"at": 3.5, "eff')
    assert step_ends(path) == [1.5, 2.5]
