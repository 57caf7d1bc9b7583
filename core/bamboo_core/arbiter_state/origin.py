"""Attempts that have no plan yet, and jobs that begin with another job's checkpoint.

Such a job never begins at step 0: until its agents have listed the checkpoint it waits, and if that
turns out to be wrong it fails.
"""

from __future__ import annotations

from bamboo_core.arbiter_state.durable import eligible, with_newer
from bamboo_core.arbiter_state.state import State

_FIELD = "spec.checkpoint.from"


def begins_elsewhere(state: State) -> bool:
    """Whether the job begins with a checkpoint of another one."""
    checkpoint = state.job.spec.checkpoint
    return checkpoint is not None and checkpoint.from_ is not None


def is_unplanned_attempt(state: State) -> bool:
    """A new attempt without a plan, which may begin with a checkpoint that is not known yet. One
    that began because of wrong bits is none: it begins with a verified checkpoint, whatever there
    is."""
    durable = state.durable
    is_later = durable.attempt not in (0, durable.rolled_back)
    is_new = is_later or (durable.attempt == 0 and begins_elsewhere(state))
    return is_new and not durable.voters and state.job.spec.checkpoint is not None


def lacks_origin(state: State) -> bool:
    """Whether the next plan would begin at step 0, although the job begins elsewhere."""
    durable = state.durable
    if durable.voters or not begins_elsewhere(state):
        return False
    return not eligible(with_newer(durable, state.ledger.newest(durable)))


def is_hopeless(state: State) -> bool:
    """Whether no list can name a checkpoint with which a job that lacks one could go on."""
    durable = state.durable
    return state.listing.is_here or (durable.attempt > 0 and durable.attempt == durable.rolled_back)


def failure(state: State) -> str:
    """Why the job cannot begin, or begin again, and what to do."""
    wrong = [step for attempt, step in state.durable.bad if attempt == 0]
    if wrong:
        text = f"the checkpoint of step {wrong[-1]} was read and is wrong; its event says why"
    elif state.durable.attempt:
        text = "no good checkpoint is left, and the one with which the job began is not kept"
    else:
        text = "agents find no checkpoint: their image has an older version of Bamboo"
    return (
        f"{_FIELD}: {text}. The job does not begin at step 0 instead: create a new BambooJob, and"
        f" name a good checkpoint in {_FIELD}"
    )
