"""An even sample of the mutants."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from bamboo_sim.mutation import sources
from bamboo_sim.mutation.mutants import Module, Mutant


def module(path: Path) -> Module:
    """A file with its mutants."""
    return Module(path, sources.name(path))


def modules(only: str = "") -> dict[str, list[Module]]:
    """The modules of every group, those whose path below core/bamboo_core contains ``only``."""
    found = {
        group: [module(path) for path in members if only in sources.name(path)]
        for group, members in sources.paths().items()
    }
    return {group: members for group, members in found.items() if members}


def of_one_module(
    paths: Sequence[Path], count: int, seed: int, least: int = 1
) -> tuple[Module, list[tuple[Module, Mutant]]]:
    """A module and at most ``count`` of its mutants: the seed's, or the next one that has at least
    ``least``.

    ValueError if none has so many.
    """
    first = seed % len(paths)
    for path in (*paths[first:], *paths[:first]):
        made = module(path)
        pairs = list(sample({"": [made]}, count, seed))
        if len(pairs) >= least:
            return made, pairs
    names = ", ".join(map(sources.name, paths))
    few = "nothing" if least == 1 else f"less than {least} things"
    raise ValueError(f"there is {few} to mutate in {names}; choose others with --only")


def sample(
    groups: dict[str, list[Module]], count: int, seed: int
) -> Iterator[tuple[Module, Mutant]]:
    """At most ``count`` mutants in mixed order, equally many of each group as far as it has them.

    At most one of a line, and there every operator is equally likely: calls with many arguments
    have most of the mutants. The choice depends on the mutants' names, so most of a sample stays
    the same when other lines change.
    """
    queues = [_ordered(members, seed) for members in groups.values()]
    while queues and count > 0:
        for queue in list(queues):
            found = next((pair for pair in queue if not pair[0].is_same(pair[1])), None)
            if found is None:
                queues.remove(queue)
            elif count > 0:
                count -= 1
                yield found


def _ordered(members: Sequence[Module], seed: int) -> Iterator[tuple[Module, Mutant]]:
    def rank(*words: object) -> bytes:
        return hashlib.sha256(f"{seed} {words}".encode()).digest()

    lines: dict[tuple[str, int], tuple[bytes, bytes, Module, Mutant]] = {}
    for member in members:
        for mutant in member.mutants:
            place = mutant.module, mutant.line
            by_operator = rank(mutant.module, mutant.text, mutant.operator)
            entry = (by_operator, rank(mutant.id), member, mutant)
            lines[place] = min(lines.get(place, entry), entry, key=lambda e: e[:2])
    for _, _, member, mutant in sorted(lines.values(), key=lambda e: e[1]):
        yield member, mutant
