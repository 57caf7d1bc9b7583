"""The chart's files of boards and rules; scripts/gen-docs writes them."""

from __future__ import annotations

from pathlib import Path

from bamboo_sim.watching.definitions import boards, panels, rules

FOLDER = Path("charts/bamboo/files")


def files() -> dict[Path, str]:
    """Path from the root -> text."""
    found = {
        FOLDER / "boards" / f"{name}.json": panels.text(board)
        for name, board in boards.every().items()
    }
    return found | {FOLDER / "rules.yaml": rules.text(), FOLDER / "alerts.yaml": rules.marked()}
