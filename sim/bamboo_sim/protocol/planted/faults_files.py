"""Planted faults of the rules about files that are away, wrong, or not needed any more. Rows: F."""

from __future__ import annotations

from typing import Any

from bamboo_core.arbiter import endings, files, rounds
from bamboo_core.arbiter.rounds import begin
from bamboo_core.arbiter_state.state import Running, State
from bamboo_core.model import pruning
from bamboo_core.model.ids import AgentId
from bamboo_core.model.pruning import Mark
from bamboo_core.protocol.messages import BadCheckpoint, Listed
from bamboo_sim.protocol.parts.job import Job
from bamboo_sim.protocol.planted.patches import Planted, both, patched

_listed = files.listed


def absent_is_bad(state: State, agent: AgentId, message: Listed, now: float) -> None:
    """A checkpoint that an agent cannot reach is never read again."""
    loaded = files._loaded(state.in_force.directives) if state.in_force is not None else None
    if message.error and loaded is not None:
        state.out.save(bad=(*state.durable.bad, loaded))
        if isinstance(state.phase, Running):
            begin(state, message.error)
    else:
        _listed(state, agent, message, now)


def one_word(state: State, agent: AgentId, bad: BadCheckpoint, now: float) -> bool:
    """One agent's word is enough."""
    return True


def believe_all(state: State, mark: Mark) -> None:
    """An agent that alone finds a checkpoint wrong is asked again and again."""


def by_attempt(marks: Any, *, newest: Mark, keep: int, sealed: Any, forks: Any) -> list[Mark]:
    """A later attempt counts more than a higher step."""
    older = sorted(mark for mark in marks if mark <= newest)
    return older[: max(0, len(older) - keep)]


def older_attempts(marks: Any, *, newest: Mark, keep: int, sealed: Any, forks: Any) -> list[Mark]:
    """The first checkpoint of an attempt replaces all of those before."""
    return [mark for mark in marks if mark[0] < newest[0]]


def note_for_ever(state: State, agent: AgentId, message: Listed) -> None:
    """That files were away is never forgotten."""
    _note_unreachable(state, agent, message)
    if message.error:
        state.__dict__["were_files_away"] = True


def no_list_again(state: State) -> bool:
    """Files that were away once are not looked for again."""
    return _may_have_unknown_files(state) and "were_files_away" not in state.__dict__


_note_unreachable, _may_have_unknown_files = files._note_unreachable, rounds._may_have_unknown_files


def no_forks(durable: Any) -> tuple[()]:
    """Only the newest fork is remembered."""
    return ()


SAVING = Job(2, 2, 2, replica=False, steps=4, save_every=1, salted=True)
LONG = Job(1, 2, 2, replica=False, steps=7, save_every=1, salted=True)

PLANTS: tuple[Planted, ...] = (
    Planted("what is not there counts as bad", "F12",
            patched(files, "listed", absent_is_bad), (("folders", SAVING),)),
    Planted("one agent's word makes a checkpoint bad", "F13",
            patched(files, "_is_confirmed", one_word), (("folders", SAVING),)),
    Planted("a later attempt's files push out higher steps", "F14",
            patched(pruning, "removable", by_attempt), (("attempts", LONG),)),
    Planted("the first seal of an attempt deletes all before", "F15",
            patched(pruning, "removable", older_attempts), (("attempts", LONG),)),
    Planted("old forks are forgotten", "F16",
            patched(endings, "shrunk", no_forks),
            (("attempts", LONG), ("forks", SAVING))),
    Planted("once files were away, nobody is asked for a list any more", "F17", both(
                patched(files, "_note_unreachable", note_for_ever),
                patched(rounds, "_may_have_unknown_files", no_list_again)),
            (("folders", SAVING),)),
    Planted("nobody hears that a checkpoint is right", "F18",
            patched(files, "_convict", believe_all), (("folders", SAVING),)),
)  # fmt: skip
