"""The mutants that mean the same as the code, each with the reason: equivalents.toml."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from bamboo_sim.mutation import sources
from bamboo_sim.mutation.mutants import Mutant, identity

FILE = Path(__file__).with_name("equivalents.toml")
_KEYS = {"module": str, "operator": str, "line": str, "occurrence": int, "becomes": str}
_KEYS["reason"] = str


@dataclass(frozen=True)
class Equivalent:
    """An entry of the file."""

    module: str
    operator: str
    line: str
    occurrence: int
    becomes: str
    reason: str

    @property
    def id(self) -> str:
        return identity(self.module, self.operator, self.line, self.occurrence)


def load(file: Path = FILE) -> dict[str, Equivalent]:
    """Id -> entry. ValueError if an entry lacks a key, has an unknown one, or occurs twice."""
    found: dict[str, Equivalent] = {}
    for number, entry in enumerate(tomllib.loads(file.read_text()).get("equivalent", ()), 1):
        for key in _KEYS.keys() | entry.keys():
            if key not in _KEYS:
                raise ValueError(f"{file.name}, entry {number}: {key} is not known; remove it")
            if not isinstance(entry.get(key), _KEYS[key]) or entry[key] == "":
                raise ValueError(
                    f"{file.name}, entry {number}: {key} must be a {_KEYS[key].__name__}; add it"
                )
        equivalent = Equivalent(**entry)
        if equivalent.id in found:
            raise ValueError(f"{file.name}, entry {number} occurs twice; remove one")
        found[equivalent.id] = equivalent
    return found


def check_modules(entries: Iterable[Equivalent]) -> None:
    """ValueError if an entry names a module that is not there, or a line that the module lacks."""
    for each in entries:
        path = sources.CORE / each.module
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        if each.line not in map(str.strip, lines):
            what = f"no line {each.line!r} in it" if lines else "no such module"
            raise ValueError(
                f"{FILE.name} names {each.module}, and there is {what}; correct the entry, or"
                " remove it"
            )


def entry(mutant: Mutant) -> str:
    """An entry for this mutant, without a reason."""
    values = {
        "module": mutant.module,
        "operator": mutant.operator,
        "line": mutant.text,
        "occurrence": mutant.occurrence,
        "becomes": mutant.becomes,
        "reason": "",
    }
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in values.items()]
    return "\n".join(["[[equivalent]]", *lines])
