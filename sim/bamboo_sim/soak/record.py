"""The record of a soak: all rounds of one state of the code. A later run of the same code adds to
it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bamboo_sim.programs import results_file
from bamboo_sim.soak.job import Round
from bamboo_sim.soak.reference import Reference

NAME = "soak"
CODE = ("agent", "core", "sim")
"""Folders whose code must be the same for all rounds of one record."""

NOTE = (
    "A round injects one to three faults into a running job of real agents at the same time, and"
    " ends those that do not end by themselves. Then it compares the hash of every layer's weights"
    " and optimizer state after a later step, and loss and gradient norm of every step, with those"
    " of a job without faults. rounds, faults: how many have"
    " acted; KIND: faults of that kind that have; without_effect: faults that have not, such as a"
    " slow disk while nobody used it; jobs: jobs"
    " that the rounds were part of; lost_jobs: jobs that ended although nobody wanted it; unequal:"
    " rounds with a difference; stalls_over_60_s: rounds after which no step was committed for 60"
    " s although enough agents could be reached, without waits for a voter, which are voter_waits"
    " and voter_wait_s; restores: rounds with a restore from a checkpoint, because all copies of a"
    " layer were lost; pause_p50_s, pause_p99_s, pause_max_s: the longest time between two commits"
    " of a round. copies_alive: losses (agents that were killed or made useless for ever) after"
    " which a copy of every layer lived, by the layers that the plan before the loss gives to each"
    " agent, without all agents that were killed or told to go, or whose worker stood still for"
    " longer than its limit of 2 s; recovery_success: share of these in whose round no attempt"
    " began, no committed step was committed again, and the job went on; suspension_repeats:"
    " committed steps that were committed again after a suspension, goal 0; unexplained_stalls:"
    " times of more than 40 s without a commit in which the status has not said why."
    " folder_away: the folder of the checkpoints was renamed away, and an agent did not find it;"
    " full_disk: the job's last checkpoint met a full disk, was written when there was room again,"
    " and holds the right bits; blip_in_suspension: the job was suspended while sessions were cut,"
    " and then resumed; refuse_sessions: sessions of several agents were closed, and were"
    " refused for 3 to 20 s, one after the other. Model: GPT of bamboo_sim/fleet/runs/jobs.py"
)


@dataclass
class SoakRecord:
    """rounds as of :class:`Round`, with the number of their job."""

    code: str = field(default_factory=lambda: results_file.fingerprint(CODE))
    rounds: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, job: str, done: Round) -> None:
        """Count a round of the job."""
        self.rounds.append({"job": job, **asdict(done), "faults": done.faults})

    def figures(self) -> dict[str, Any]:
        """Counts over all rounds."""
        rounds = self.rounds
        kinds = Counter(kind for x in rounds for kind in x["kinds"].split("+") if kind)
        pauses = sorted(x["pause_s"] for x in rounds)
        idle = [kind for x in rounds for kind in x["idle"].split("+") if kind]
        waits = [x["voter_wait_s"] for x in rounds if x["voter_wait_s"] > 0]
        alive = sum(x["copies_alive"] for x in rounds)
        recovered = sum(x["recovered"] for x in rounds)
        return {
            "rounds": sum(x["faults"] > 0 for x in rounds),
            "faults": sum(x["faults"] for x in rounds),
            "without_effect": len(idle),
            "lost_jobs": sum(x["lost"] for x in rounds),
            "unequal": sum(x["unequal"] for x in rounds),
            "stalls_over_60_s": sum(x["stalled"] for x in rounds),
            "unexplained_stalls": sum(x["unexplained"] for x in rounds),
            "copies_alive": alive,
            "recovery_success": recovered / alive if alive else 0.0,
            "suspension_repeats": sum(x["repeated"] for x in rounds if not x["restored"]),
            "jobs": len({x["job"] for x in rounds}),
            "restores": sum(x["restored"] for x in rounds),
            "voter_waits": len(waits),
            "voter_wait_s": round(sum(waits), 1),
            "pause_p50_s": quantile(pauses, 0.5),
            "pause_p99_s": quantile(pauses, 0.99),
            "pause_max_s": quantile(pauses, 1.0),
            "seconds": round(self.seconds, 1),
            **dict(sorted(kinds.items())),
        }

    def effects(self) -> dict[str, int]:
        """How often faults of each kind have acted."""
        found = Counter[str]()
        for each in self.rounds:
            found.update(each["effects"])
        return dict(sorted(found.items()))

    @property
    def failures(self) -> list[str]:
        """Failures, the first ones first."""
        return [f"{x['job']}: {x['did']}: {x['failure']}" for x in self.rounds if x["failure"]]

    def save(self) -> None:
        """Save the progress. SystemExit if the code has changed since the run began."""
        if results_file.fingerprint(CODE) != self.code:
            raise SystemExit(
                f"the code in {', '.join(CODE)} has changed: the rounds since the last save are not"
                " counted; run this again"
            )
        content = {"rounds": self.rounds, "seconds": self.seconds}
        results_file.save_progress(NAME, self.code, content)

    def write(self) -> None:
        """Write the result file."""
        rows = [{key: x[key] for key in _COLUMNS} for x in self.rounds]
        samples = {
            "code": self.code,
            "rounds": results_file.columns(rows),
            "effects": self.effects(),
            "failures": [text[:2000] for text in self.failures[:5]],
        }
        results_file.write(NAME, samples=samples, figures=self.figures(), note=NOTE)


_COLUMNS = (
    *("job", "grid", "kinds", "idle", "seconds", "pause_s", "voter_wait_s", "restored"),
    *("copies_alive", "recovered", "repeated"),
)


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least this share does not exceed; 0 if there is none."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


def resume() -> SoakRecord:
    """The record of an earlier run of the same code; otherwise an empty one."""
    record = SoakRecord()
    found = results_file.load_progress(NAME, record.code)
    if found is not None:
        record.rounds, record.seconds = found["rounds"], found["seconds"]
    return record


def load_reference(steps: int) -> Reference | None:
    """The reference that an earlier run of the same code computed."""
    found = results_file.load_progress(f"{NAME}-{steps}-steps", results_file.fingerprint(CODE))
    return None if found is None else Reference(**found)


def save_reference(reference: Reference) -> None:
    """Save it for later runs of the same code."""
    code = results_file.fingerprint(CODE)
    results_file.save_progress(f"{NAME}-{reference.steps}-steps", code, asdict(reference))
