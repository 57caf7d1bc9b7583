"""The modules of the core that are mutated."""

from __future__ import annotations

from pathlib import Path

from bamboo_sim.results_file import ROOT

CORE = ROOT / "core" / "bamboo_core"
GROUPS = {
    "arbiter": ("arbiter/*.py", "knowledge/*.py"),
    "evidence": ("evidence/*.py",),
    "executor": ("protocol/executor*.py",),
    "supervisor": ("protocol/*.py",),
    "planner": ("planning/*.py",),
    "graph": ("graph/*.py",),
}
"""Group -> its files below core/bamboo_core, without those of an earlier group. A sample takes
equally many mutants of each group."""
LEFT_OUT = {
    "planning/show.py": "prints only",
    "protocol/effects.py": "data without rules",
    "protocol/exit_codes.py": "data without rules",
    "protocol/messages.py": "data without rules",
}


def paths() -> dict[str, list[Path]]:
    """The files of every group that exists."""
    found: dict[str, list[Path]] = {}
    seen = {CORE / name for name in LEFT_OUT}
    for group, patterns in GROUPS.items():
        for path in sorted(p for pattern in patterns for p in CORE.glob(pattern)):
            if path.name != "__init__.py" and path not in seen:
                found.setdefault(group, []).append(path)
                seen.add(path)
    return found


def name(path: Path) -> str:
    """The module's path below core/bamboo_core."""
    return str(path.relative_to(CORE))
