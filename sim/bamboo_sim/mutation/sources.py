"""The modules of the core that are mutated."""

from __future__ import annotations

from pathlib import Path

from bamboo_sim.programs.results_file import ROOT

CORE = ROOT / "core" / "bamboo_core"
GROUPS = {
    "arbiter": ("arbiter/*.py", "arbiter_state/*.py"),
    "evidence": ("evidence/*.py",),
    "executor": ("protocol/executor*.py",),
    "supervisor": ("protocol/*.py",),
    "planner": ("planning/*.py", "planning/displays/*.py"),
    "graph": ("graph/*.py",),
}
"""Group -> its files below core/bamboo_core, without those of an earlier group. A sample takes
equally many mutants of each group."""
LEFT_OUT = {
    "planning/displays/show.py": "prints only",
    "protocol/effects.py": "data without rules",
    "protocol/exit_codes.py": "data without rules",
    "protocol/messages.py": "data without rules",
}


def paths() -> dict[str, list[Path]]:
    """The files of every group. ValueError if a pattern matches no file, or a file that is left out
    does not exist: it has moved."""
    found: dict[str, list[Path]] = {}
    seen = {CORE / name for name in LEFT_OUT}
    gone = [path for path in seen if not path.exists()]
    matched = {p: sorted(CORE.glob(p)) for patterns in GROUPS.values() for p in patterns}
    gone += [CORE / pattern for pattern, files in matched.items() if not files]
    if gone:
        raise ValueError(f"there is no {', '.join(map(str, gone))}; say in {__file__} where it is")
    for group, patterns in GROUPS.items():
        for path in sorted(p for pattern in patterns for p in matched[pattern]):
            if path.name != "__init__.py" and path not in seen:
                found.setdefault(group, []).append(path)
                seen.add(path)
    return found


def name(path: Path) -> str:
    """The module's path below core/bamboo_core."""
    return str(path.relative_to(CORE))
