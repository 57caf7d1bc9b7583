"""Planted faults of the rules by which the user's code fails. Rows: U."""

from __future__ import annotations

from bamboo_core.arbiter import endings, last_write, losses, saving
from bamboo_core.arbiter_state.state import State
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.protocol import executor, supervisor
from bamboo_core.protocol.messages import Halted
from bamboo_sim.protocol.parts.job import Job
from bamboo_sim.protocol.planted.patches import Planted, patched

SAVING = Job(2, 2, 2, replica=False, steps=4, save_every=1, salted=True)
SELDOM = Job(2, 2, 2, layers=3, steps=4, save_every=2)
MOVING = Job(1, 2, 2, replica=False, spares=2)
_meet, _fail, _pause = losses._meet, endings.fail, last_write.pause


def count_words(
    state: State, agent: AgentId, error: str, text: str, fence: Fence = Fence()
) -> None:
    """An error that a supervisor says again counts again."""
    _meet(state, agent, error, text, fence)
    _meet(state, agent, error, text, Fence(0, 0, len(state.users_errors.get(error, ()))))


def end_at_once(state: State, text: str) -> None:
    """The job ends without its last checkpoint."""
    _fail(state, text)
    if state.durable.failing:
        endings.end_failing(state)


def press_again(state: State, now: float) -> tuple[str, float] | None:
    """Agents that leave press for a plan that cannot be made, again and again."""
    going = state.rewriting.going
    found = _pause(state, now)
    if not last_write.staying(state):
        state.rewriting.going = going
    return found


PLANTS: tuple[Planted, ...] = (
    Planted("a job that its code fails ends without its state", "U1",
            patched(losses, "fail", end_at_once), (("samples", SELDOM),)),
    Planted("an error that is said again counts again", "U2",
            patched(losses, "_meet", count_words), (("samples", MOVING), ("samples", SAVING))),
    Planted("that an agent has halted is told once", "U3",
            patched(supervisor, "_REPEATED",
                    tuple(x for x in supervisor._REPEATED if x is not Halted)),
            (("samples", MOVING), ("samples", SAVING))),
    Planted("one error of the user's code ends the job", "U4",
            patched(losses, "_PROOF", 1), (("samples", SAVING),)),
    Planted("an agent that nobody can replace is given up", "U5",
            patched(losses, "_can_spare", lambda state, agent: True), (("samples", MOVING),)),
    Planted("agents that leave press for a plan again and again", "U6",
            patched(last_write, "pause", press_again), (("samples", SAVING),)),
    Planted("what a backward has spoilt before it failed is used again", "U7",
            patched(executor, "spoilt", lambda task: []), (("samples", SAVING),)),
    Planted("code that has ended a process is tried again before the state is written", "U8",
            patched(saving, "ask", lambda state, why: None), (("samples", SELDOM),)),
)  # fmt: skip
