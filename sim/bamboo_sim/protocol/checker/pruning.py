"""No checkpoint is lost that the job may still need: neither deleted, nor given up while its files
are right."""

from __future__ import annotations

from bamboo_core.arbiter_state.durable import Durable, eligible, with_newer
from bamboo_sim.protocol.checker.best import check_kept
from bamboo_sim.protocol.parts.violation import Violation
from bamboo_sim.protocol.world.state import World

_KEPT = 2


def check_pruned(world: World) -> None:
    """Carry out what an agent deletes. One that the facts call eligible goes only if enough newer
    ones are there. An agent of an attempt that is over does not know the facts."""
    folder, facts = world.sealed, world.operators.durable
    needed = {(m.attempt, m.step) for m in eligible(facts)}
    deleted, folder.deleted = folder.deleted, []
    for mark, attempt in deleted:
        newer = [
            other
            for other in folder
            if other[0] == attempt and other[1] > mark[1] and other not in facts.bad
        ]
        if mark in needed and attempt == facts.attempt and len(newer) < _KEPT:
            raise Violation(f"checkpoint {mark} is deleted, and there are only {sorted(newer)}")
        if attempt == facts.attempt:
            check_kept(world, mark)
        folder.pop(mark, None)
        folder.scores.pop(mark, None)
        folder.missing -= {mark}
        folder.pruned += 1


def check_base(world: World, before: Durable) -> None:
    """A new attempt does not begin behind a checkpoint that the facts name and whose files are
    right, wherever they are at the moment. Two wrong reads, or a write that failed, are excuses.
    before: the facts until then."""
    folder, base = world.sealed, world.arbiter.durable.manifest
    begun = base.step if base is not None else 0
    newest = world.arbiter.state.ledger.newest(before)
    whole = eligible(with_newer(Durable(**{**vars(before), "bad": ()}), newest))
    for manifest in whole:
        mark = manifest.attempt, manifest.step
        is_right = folder.get(mark) is not None
        is_excused = folder.misread[mark] > 1 or mark in folder.refused
        if manifest.step > begun and is_right and not is_excused:
            raise Violation(f"restored from step {begun}, though {mark} is only out of reach")


def is_gone(world: World) -> bool:
    """Whether the job waits for files that are away, or that were deleted."""
    base = world.operators.durable.manifest
    mark = (base.attempt, base.step) if base is not None else None
    return mark is not None and mark not in world.sealed.seen()
