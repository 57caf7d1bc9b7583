"""Planted faults of the rules about files that are away, wrong, or not needed any more. Rows: F."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bamboo_core.api.spec import BestMode, JobSpec
from bamboo_core.arbiter import endings, files, rounds
from bamboo_core.arbiter.rounds import begin
from bamboo_core.arbiter_state import origin
from bamboo_core.arbiter_state.durable import Durable
from bamboo_core.arbiter_state.outbox import Outbox
from bamboo_core.arbiter_state.state import Running, State
from bamboo_core.model import pruning
from bamboo_core.model.ids import AgentId
from bamboo_core.model.pruning import Mark
from bamboo_core.protocol.messages import BadCheckpoint, CommitRecord, Listed
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


def by_attempt(marks: Any, *, newest: Mark, keep: int, **others: Any) -> list[Mark]:
    """A later attempt counts more than a higher step."""
    older = sorted(mark for mark in marks if mark <= newest)
    return older[: max(0, len(older) - keep)]


def older_attempts(marks: Any, *, newest: Mark, keep: int, **others: Any) -> list[Mark]:
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


def complete_for_ever(out: Outbox, spec: JobSpec, term: int) -> Durable:
    """A complete job stays so, however many steps it is to have."""
    out.save(term=max(term, out.durable.term), steps=spec.training.steps)
    return out.durable


def no_best(values: Any, bad: Any, forks: Any, *, is_max: bool) -> set[Mark]:
    """The best checkpoint is one like all others."""
    return set()


def of_training(self: CommitRecord, metric: str) -> float | None:
    """A manifest has the loss of the step that is trained, not of its own weights' validation."""
    return self.loss


def is_later_attempt(state: State) -> bool:
    """The first attempt of a job begins at step 0."""
    return _is_unplanned_attempt(state) and state.durable.attempt > 0


def lacks_nothing(state: State) -> bool:
    """A job whose agents have not listed what it begins with begins at step 0."""
    return False


_is_unplanned_attempt = origin.is_unplanned_attempt

SAVING = Job(2, 2, 2, replica=False, steps=4, save_every=1, salted=True)
BEGUN = Job(2, 2, 2, replica=False, steps=4, save_every=1, salted=True, begins_at=2)
LONG = Job(1, 2, 2, replica=False, steps=7, save_every=1, salted=True)

BEST = replace(SAVING, steps=6, evals=1, validate_every=1, best_is=BestMode.MIN)

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
    Planted("a complete job stays complete when it gets more steps", "F20",
            patched(endings, "aimed", complete_for_ever), (("raises", SAVING),)),
    Planted("the best checkpoint is deleted like all others", "F21",
            patched(pruning, "worth_keeping", no_best), (("attempts", BEST),)),
    Planted("a manifest has the loss of the training", "F22",
            patched(CommitRecord, "validated", of_training), (("storage", BEST),)),
    Planted("a job that names a checkpoint begins at step 0", "F23",
            patched(origin, "is_unplanned_attempt", is_later_attempt), (("bulks", BEGUN),)),
    Planted("a job that cannot list its beginning begins at step 0", "F24",
            patched(origin, "lacks_origin", lacks_nothing), (("beginnings", BEGUN),)),
)  # fmt: skip
