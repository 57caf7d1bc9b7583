"""Planted faults of the rules about files that are away, wrong, or not needed any more."""

from __future__ import annotations

from bamboo_core.arbiter import endings, files, rounds
from bamboo_core.model import pruning
from bamboo_sim.protocol.parts.job import Job
from bamboo_sim.protocol.planted import rules_files
from bamboo_sim.protocol.planted.patches import Planted, both, patched

SAVING = Job(2, 2, 2, replica=False, steps=4, save_every=1, salted=True)
LONG = Job(1, 2, 2, replica=False, steps=7, save_every=1, salted=True)

PLANTS: tuple[Planted, ...] = (
    Planted("what is not there counts as bad", "F12",
            patched(files, "listed", rules_files.absent_is_bad), (("folders", SAVING),)),
    Planted("one agent's word makes a checkpoint bad", "F13",
            patched(files, "_is_confirmed", rules_files.one_word), (("folders", SAVING),)),
    Planted("a later attempt's files push out higher steps", "F14",
            patched(pruning, "removable", rules_files.by_attempt), (("attempts", LONG),)),
    Planted("the first seal of an attempt deletes all before", "F15",
            patched(pruning, "removable", rules_files.older_attempts), (("attempts", LONG),)),
    Planted("old forks are forgotten", "F16",
            patched(endings, "shrunk", rules_files.no_forks),
            (("attempts", LONG), ("forks", SAVING))),
    Planted("once files were away, nobody is asked for a list any more", "F17", both(
                patched(files, "_note_unreachable", rules_files.note_for_ever),
                patched(rounds, "_may_have_unknown_files", rules_files.no_list_again)),
            (("folders", SAVING),)),
    Planted("nobody hears that a checkpoint is right", "F18",
            patched(files, "_convict", rules_files.believe_all), (("folders", SAVING),)),
)  # fmt: skip
