"""Planted faults of the rules that keep jobs alive while nobody dies.

Rows: K: words that come late or are repeated. T: time. W: stalls. F: files. D: durable facts.
A: failures and evidence. L: who is needed, and in which order.
"""

from __future__ import annotations

from bamboo_core.arbiter import (
    endings,
    files,
    last_write,
    losses,
    plans,
    refusals,
    rounds,
    training,
)
from bamboo_core.arbiter.arbiter import Arbiter
from bamboo_core.arbiter_state import durable as durable_module
from bamboo_core.arbiter_state.membership import Membership
from bamboo_core.evidence import stalls
from bamboo_core.evidence.liveness import Patience
from bamboo_core.job.durable_writer import DurableWriter, LeaderFacts
from bamboo_core.job.leadership import Leadership
from bamboo_core.protocol import supervisor
from bamboo_core.protocol.clock import PatientClock
from bamboo_core.protocol.execution.pending_files import PendingFiles
from bamboo_core.protocol.executor import Executor
from bamboo_core.protocol.messages import BadCheckpoint, Sealed
from bamboo_core.protocol.said import Said
from bamboo_core.protocol.supervisor import Supervisor
from bamboo_core.protocol.watch import Transfers, Watch
from bamboo_core.scheduling import dry_run
from bamboo_core.scheduling.lowering import Lowering
from bamboo_sim.protocol.parts.job import Job
from bamboo_sim.protocol.planted import rules_edges
from bamboo_sim.protocol.planted.patches import Planted, both, patched

SMALL = Job(2, 2, 2)
LONG = Job(2, 2, 2, steps=5)
SPARE = Job(2, 2, 2, spares=1)
MOVING = Job(1, 2, 2, replica=False, spares=2)
SAVING = Job(2, 2, 2, replica=False, steps=4, save_every=1, salted=True)
LEARNERS = Job(1, 3, 4, layers=5, steps=8, spares=2, learners=True)
LEARNING = Job(2, 2, 2, steps=8, spares=1, learners=True)
PLAIN = Job(2, 2, 2, replica=False, steps=4)
SLEEPING = Job(2, 2, 2, layers=3, steps=4, save_every=2, salted=True)
UNEVEN = Job(1, 3, 4, layers=5, spares=1, save_every=2)
LEARNT = Job(1, 3, 2, layers=4, steps=6, spares=3, learners=True, eager=True)
TALL = Job(1, 3, 2, steps=4, spares=1)
SINGLE = Job(1, 1, 2, spares=1, save_every=1)
rules_edges._in_disorder = dry_run._Run._in_disorder


def _without(kind: type) -> tuple[type, ...]:
    return tuple(x for x in supervisor._REPEATED if x is not kind)


PLANTS: tuple[Planted, ...] = (
    Planted("a Left of an older plan removes a member", "K1",
            patched(losses, "left", rules_edges.left_of_any_plan), (("farewells", TALL),)),
    Planted("a Finished of an older plan counts", "K2",
            patched(training, "finished", rules_edges.finished_of_any_plan),
            (("finishes", UNEVEN),)),
    Planted("a report is matched by its epoch alone", "K3",
            patched(rounds, "reported", rules_edges.report_of_any_term), (("reports", MOVING),)),
    Planted("suspicions are told once", "K4",
            patched(Watch, "suspicions", rules_edges.only_news), (("resets", SMALL),)),
    Planted("a seal is told once", "K5",
            patched(supervisor, "_REPEATED", _without(Sealed)), (("sessions", SAVING),)),
    Planted("a bad checkpoint is told once", "K6",
            patched(supervisor, "_REPEATED", _without(BadCheckpoint)), (("tears", SAVING),)),
    Planted("words are forgotten before the leader has them", "K7",
            patched(Said, "install", rules_edges.forget_early), (("tears", SAVING),)),
    Planted("the outcome is told once", "K8",
            patched(Said, "words", rules_edges.without_outcome), (("sessions", SMALL),)),
    Planted("an agent is ready in one session only", "K9",
            patched(Supervisor, "_welcomed", rules_edges.without_ready),
            (("operators", SMALL), ("sessions", SMALL))),
    Planted("a member that comes back gets no directive", "K10",
            patched(Arbiter, "_returned", rules_edges.no_second_directive), (("sessions", SMALL),)),
    Planted("a member that comes back is not asked again", "K11",
            patched(Arbiter, "_returned", rules_edges.no_second_stop), (("sessions", SMALL),)),
    Planted("a STOP that is said again drops the votes of its plan", "K12",
            patched(Executor, "_adopt", rules_edges.drop_every_vote),
            (("echoes", SAVING), ("echoes", SMALL))),
    Planted("the operator's own pause counts as silence", "T1",
            patched(Arbiter, "__init__", rules_edges.impatient_arbiter), (("pauses", SMALL),)),
    Planted("the supervisor's own pause counts as slowness", "T2",
            patched(Supervisor, "__post_init__", rules_edges.impatient_supervisor),
            (("stops", SMALL),)),
    Planted("a report is due before its STOP has left", "T3", both(
                patched(rounds, "begin", rules_edges.begin_at_once),
                patched(losses, "begin", rules_edges.begin_at_once)),
            (("writes", SMALL),)),
    Planted("the second part of a plan may take for ever", "T4",
            patched(plans, "await_continuations", rules_edges.never_late), (("delays", SMALL),)),
    Planted("waits count while directives are on their way", "T5",
            patched(rounds, "sent", rules_edges.sent_long_ago), (("pauses", SMALL),)),
    Planted("silence is not found while heartbeats are rarer", "T6",
            patched(Patience, "with_rarer", rules_edges.endless), (("silences", SMALL),)),
    Planted("what a busy operator has not read counts as silence", "T7",
            patched(PatientClock, "read", rules_edges.all_is_read), (("pauses", SMALL),)),
    Planted("what is dropped while leadership is uncertain counts as silence", "T8",
            patched(Arbiter, "skip_time", lambda self, now: None), (("pauses", SMALL),)),
    Planted("agents that wait for each other are not seen", "W1",
            patched(stalls, "_cycle", rules_edges.no_cycle), (("silences", SMALL),)),
    Planted("an instruction without an end is not seen", "W2",
            patched(stalls, "_is_overdue", rules_edges.never_overdue), (("hangs", SMALL),)),
    Planted("the root of a stall is never replaced", "W3",
            patched(losses, "_mend_stall", rules_edges.replan_for_ever), (("silences", SMALL),)),
    Planted("who waits for an idle agent is not seen", "W4",
            patched(stalls, "_not_sent", rules_edges.no_end),
            (("hangs", SMALL), ("silences", SMALL))),
    Planted("agents that never begin are not seen", "W5",
            patched(stalls, "_all_idle", rules_edges.no_end), (("hangs", SINGLE),)),
    Planted("any byte ends a wait", "W6",
            patched(Transfers, "slow", rules_edges.any_byte_ends_a_wait), (("trickles", SMALL),)),
    Planted("a link that trickles is told, and kept", "W7",
            patched(losses, "_mend_slow_links", rules_edges.slow_links_are_told),
            (("trickles", SMALL),)),
    Planted("silence between bursts of bytes never counts", "W8",
            patched(Transfers, "_end_silence", rules_edges.silence_never_counts),
            (("trickles", SMALL),)),
    Planted("a layer is given up before the checkpoints are listed", "F2",
            patched(rounds, "_may_have_unknown_files", rules_edges.no_listing),
            (("storage", SAVING), ("restores", SAVING))),
    Planted("a job ends before its files are written", "F3",
            patched(PendingFiles, "are_due", property(rules_edges.no_files_due)),
            (("storage", SAVING),)),
    Planted("a restore waits for no list", "F4",
            patched(rounds, "_list_and_restore", endings.restore),
            (("restores", SAVING), ("restores", SLEEPING))),
    Planted("a new attempt waits for no list", "F5",
            patched(rounds, "_lists_first", rules_edges.lists_never),
            (("absences", SAVING), ("absences", SLEEPING))),
    Planted("an attempt that has computed nothing hides newer files", "F6",
            patched(endings, "with_newer", rules_edges.every_fork),
            (("absences", SAVING), ("absences", SLEEPING))),
    Planted("a list of the loss before counts", "F7",
            patched(files, "listed", rules_edges.any_list), (("lists", SAVING),)),
    Planted("agents are released that hold the only copy of a layer", "F8",
            patched(last_write, "staying", rules_edges.without_last_holder), (("space", SAVING),)),
    Planted("the last checkpoint is written once", "F9",
            patched(last_write, "is_due", lambda state, now: False), (("space", SAVING),)),
    Planted("the last checkpoint is never tried again", "F10",
            patched(last_write, "pause", rules_edges.pause_for_ever), (("space", SAVING),)),
    Planted("the wait for the last checkpoint has no end", "F11",
            patched(last_write, "left_s", lambda state, now: 1e9), (("space", SAVING),)),
    Planted("a sealed checkpoint that is not written again is awaited", "F19",
            patched(files, "is_sealed", lambda durable, mark: False), (("space", SAVING),)),
    Planted("a write replaces whatever is there", "D1",
            patched(LeaderFacts, "check", rules_edges.any_writer), (("operators", SMALL),)),
    Planted("events are dropped while leadership is uncertain", "D3", both(
                patched(Leadership, "_put", rules_edges.drop_held),
                patched(Leadership, "handle", rules_edges.note_uncertainty)),
            (("pauses", SMALL),)),
    Planted("a write for the arbiter before counts for the new one", "D5",
            patched(DurableWriter, "drop", rules_edges.keep_order),
            (("pauses", SMALL), ("writes", SMALL))),
    Planted("newer facts are forgotten while older ones are written", "D6",
            patched(DurableWriter, "written", rules_edges.forget_newer), (("writes", SMALL),)),
    Planted("facts as JSON do not say who votes", "D7",
            patched(durable_module, "_from_agents", rules_edges.everyone_votes),
            (("leavers", MOVING), ("shrinks", LONG), ("isolations", MOVING))),
    Planted("one agent's user error ends the job", "A1",
            patched(losses, "_is_everywhere", rules_edges.fails_everywhere), (("hangs", SMALL),)),
    Planted("one fault of the planner ends the job", "A2",
            patched(plans, "_MOST_FAULTS", 1), (("delays", SMALL),)),
    Planted("suspected agents are never asked again", "A3",
            patched(Membership, "reinstate_all", lambda self: None),
            (("races", TALL),)),
    Planted("a job that is suspended waits for nothing", "A4",
            patched(rounds, "hold", rules_edges.suspend_at_once), (("suspensions", SLEEPING),)),
    Planted("newcomers become members before they are compared", "A5",
            patched(refusals, "fitting", rules_edges.everyone_fits),
            (("strangers", MOVING), ("strangers", LONG))),
    Planted("another kind of processor goes on in silence", "A6",
            patched(plans, "_tell_processors", lambda *kinds, is_mixed: None),
            (("successors", SAVING),)),
    Planted("a learner may always go", "L2",
            patched(losses, "_is_dispensable", rules_edges.any_learner_goes),
            (("sources", LEARNT),)),
    Planted("agents receive out of order, and the dry run ignores it", "L3", both(
                patched(Lowering, "_catch_up", rules_edges.needed_first),
                patched(dry_run._Run, "_in_disorder", rules_edges.any_order)),
            (("singles", SMALL), ("changes", SPARE))),
)  # fmt: skip
