"""Planted faults: protocol rules removed on purpose. The explorer must find every one of them.

A fault is a patch of production code, and the families of histories that must detect it. Rows are
those of docs/verification.md (S: step graph, C: changes, H: one holder per seat, R: restores, P:
plans in two parts, M: memory).
"""

from __future__ import annotations

from bamboo_core.arbiter import endings, files, plans, rounds
from bamboo_core.arbiter.arbiter import Arbiter
from bamboo_core.arbiter_state.outbox import Outbox
from bamboo_core.arbiter_state.state import State
from bamboo_core.graph import closure as graph_module
from bamboo_core.graph.holdings import HoldingsIndex
from bamboo_core.job.durable_writer import LeaderFacts
from bamboo_core.model import rules as instruction_rules
from bamboo_core.planning import planner
from bamboo_core.planning.team import Seating
from bamboo_core.protocol.executor import Executor
from bamboo_core.scheduling import schedule
from bamboo_sim.protocol.parts.job import Job
from bamboo_sim.protocol.parts.symbolic import Symbolic
from bamboo_sim.protocol.planted import (
    faults_ahead,
    faults_asking,
    faults_bits,
    faults_code,
    faults_edges,
    faults_files,
    faults_moves,
    rules,
    rules_edges,
)
from bamboo_sim.protocol.planted.patches import Planted, both, patched

SMALL = Job(2, 2, 2)
TALL = Job(1, 3, 2)
LONG = Job(2, 2, 2, steps=5)
SPARE = Job(2, 2, 2, spares=1)
MOVING = Job(1, 2, 2, replica=False, spares=2)
SAVING = Job(2, 2, 2, replica=False, steps=4, save_every=1, salted=True)
SELDOM = Job(2, 2, 2, replica=False, steps=4, save_every=2, salted=True)
DEEP = Job(1, 2, 4)
TURNING = Job(2, 2, 2, layers=4, steps=4)
BACK_AND_FORTH = Job(2, 2, 2, steps=6)
NEW_OWNER = Job(1, 2, 2, spares=1)
THREE_ZONES = Job(2, 3, 2, spares=1, zones=3)


PLANTS: tuple[Planted, ...] = (
    Planted("votes survive a stop", "S1", patched(Executor, "_adopt", rules.keep_votes),
            (("singles", TALL), ("singles", SMALL), ("seconds", SMALL))),
    Planted("data before the program is refused", "S2",
            patched(Executor, "accepts", rules.refuse_before_program), (("singles", SMALL),)),
    Planted("the oldest step decides, not the facts", "S3",
            patched(Seating, "__init__", rules.oldest_step), (("singles", SMALL),)),
    Planted("no term in the fence", "S4", both(
                patched(Arbiter, "__init__", rules.same_term),
                patched(LeaderFacts, "check", rules_edges.any_writer)),
            (("operators", SMALL),)),
    Planted("a leaf sum grows out of the one before", "S11",
            patched(Symbolic, "_backward_weight", rules.grow_prefix), (("singles", SMALL),)),
    Planted("gradients of an ended step are refused", "C2",
            patched(Executor, "_is_stale", rules.refuse_old_gradients),
            (("returns", BACK_AND_FORTH),)),
    Planted("a copied version comes without its commit", "C3",
            patched(Executor, "_transmit", rules.version_without_commit),
            (("new-owners", NEW_OWNER),)),
    Planted("no voter rule", "C4", patched(State, "durable", property(rules.no_voters)),
            (("shrinks", LONG),)),
    Planted("voters are forgotten at a restart", "C5",
            patched(Arbiter, "__init__", rules.forget_voters), (("shrinks", LONG),)),
    Planted("directives leave before their facts are durable", "C6",
            patched(Outbox, "after_facts", rules.persist_late), (("replacements", MOVING),)),
    Planted("unwanted layers are dropped at once", "C7",
            patched(Executor, "_end", rules.drop_at_once),
            (("changes", SPARE), ("replacements", MOVING), ("regrids", TURNING))),
    Planted("a leaver goes before the commit", "C8",
            patched(planner._Planning, "_directives", rules.exit_early),
            (("replacements", MOVING), ("changes", SPARE))),
    Planted("a vote does not need the versions", "C9",
            patched(Executor, "_may", rules.vote_without_versions),
            (("replacements", MOVING),)),
    Planted("only wanted holders take part in the transition", "C10",
            patched(graph_module._Closure, "_layers", rules.wanted_only),
            (("handovers", MOVING),)),
    Planted("END of an unknown commit is asked for", "C11",
            patched(graph_module._Closure, "_end_older", rules.always_end),
            (("restores", SAVING),)),
    Planted("files of any version are used", "C12",
            patched(Seating, "__init__", rules.newest_files), (("restores", SELDOM),)),
    Planted("manifests beyond a fork are used", "C13",
            both(patched(rounds, "eligible", rules.old_forks),
                  patched(endings, "eligible", rules.old_forks)),
            (("forks", SAVING),)),
    Planted("a leaver on short notice may not catch up", "C15",
            patched(HoldingsIndex, "_usable", rules.no_late_update),
            (("short-notices", MOVING),)),
    Planted("holdings survive a new attempt", "C18",
            patched(Executor, "_wipe", rules.keep_holdings),
            (("restores", SAVING),)),
    Planted("two answers of the planner count in one epoch", "H1",
            patched(plans, "planned", rules.any_answer),
            (("seconds", SMALL), ("seconds", TALL))),
    Planted("directives of a superseded answer leave", "H2",
            patched(plans, "planned", rules.late_directives),
            (("seconds", SMALL), ("seconds", TALL))),
    Planted("a torn file that all have read is restored from", "R1",
            patched(files, "bad_checkpoint", rules.restore_at_once),
            (("restores", SAVING),)),
    Planted("files of the needed version are not read", "R2",
            patched(Seating, "__init__", rules.no_files), (("restores", SAVING),)),
    Planted("a job begins again in the same attempt", "R3",
            patched(Seating, "_refuse_silent_restart", rules.begin_silently),
            (("forks", SAVING), ("new-owners", NEW_OWNER))),
    Planted("a plan forgets from which commit the one before began", "R4",
            patched(Seating, "_can_repeat", rules.repeat_anything),
            (("new-owners", NEW_OWNER),)),
    Planted("a member that only helps counts as staying", "R5",
            patched(rounds, "_are_newcomers_wanted", rules.count_helpers),
            (("surplus", THREE_ZONES),)),
    Planted("agents of one zone that find no seat in the grid lose their layers", "R6",
            patched(Seating, "_seats", rules.smallest_grid), (("zones", THREE_ZONES),)),
    Planted("an agent goes on with the continuation of the plan before", "P1",
            patched(Executor, "install", rules.keep_continuation), (("singles", SMALL),)),
    Planted("an agent that lacks its continuation has finished", "P2",
            patched(Executor, "_next_program", rules.finish_without), (("singles", SMALL),)),
    Planted("a continuation that comes early is lost", "P3",
            patched(Executor, "proceed", rules.forget_early), (("singles", SMALL),)),
    Planted("a lost continuation is not sent again", "P4",
            patched(plans, "_continue", rules.forget_continuations), (("sessions", SMALL),)),
    Planted("END does not free outputs and input gradients", "M1",
            patched(Executor, "_is_spent", rules.never_spent), (("operators", SMALL),)),
    Planted("no cap of forwards in flight", "M2",
            patched(schedule, "caps", rules.no_caps), (("operators", DEEP),)),
    Planted("folded leaf sums stay", "M3",
            patched(instruction_rules, "rule", rules.keep_leaves), (("operators", DEEP),)),
)  # fmt: skip

NOT_SHOWN: dict[str, str] = {
    "S1": "every holder votes for all layers that it holds and wants, and copies precede the vote,"
    " so an old vote stays true; tests/core/protocol checks that a stop drops votes",
    "S5": "the commit comes after every F, B, I and V of its step by construction;"
    " tests/core/protocol checks that they are ancestors of UPDATE",
    "S10": "the executor has no caps; the scheduler's forced releases are counted and tested",
    "C1": "learners run programs under the same fences; nothing is copied outside of them",
    "C16": "as C1",
    "C17": "as C1",
    "C9": "a newcomer's UPDATE and its next program wait for its versions in any case",
    "C3": "the plan's durable target implies that the step before it is committed;"
    " tests/core/protocol checks that the commit is sent",
    "C10": "unknown: in all histories, other holders could replace it;"
    " tests/core/arbiter checks that leaving agents update what they hold",
    "C14": "a heartbeat replaces all suspicions of its sender, and the first one of the new epoch"
    " comes before the old ones count; tests/core/evidence checks the rest",
    "D2": "a STOP decides nothing, and the write of the first plan is compared like any other;"
    " tests/core/arbiter checks that the term is written first",
    "F1": "checkpoints are listed only after all members have reported; tests/agent/storage checks"
    " that a slow storage holds up no report",
    "L1": "when the operator knows a commit, every voter has had all that it needs of the leaver;"
    " tests/core/arbiter checks the rule",
}
"""Rules whose removal no history detects: why, and what checks them instead."""

FAULTS: tuple[Planted, ...] = (
    *(p for p in PLANTS if p.row not in NOT_SHOWN),
    *(p for p in faults_edges.PLANTS if p.row not in NOT_SHOWN),
    *faults_asking.PLANTS,
    *faults_ahead.PLANTS,
    *faults_bits.PLANTS,
    *faults_files.PLANTS,
    *faults_code.PLANTS,
    *faults_moves.PLANTS,
)
"""The faults that the explorer must detect."""
