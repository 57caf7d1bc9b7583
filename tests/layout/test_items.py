"""Items come from named constructors, since ``index`` means something else for each kind."""

from __future__ import annotations

import ast
from pathlib import Path

ITEMS = Path("core/bamboo_core/model/items.py")


def positional_items(path: Path) -> list[int]:
    """Lines on which ``Item(...)`` is called with positional arguments."""
    text = path.read_text()
    if "Item(" not in text:
        return []
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    return [
        call.lineno
        for call in calls
        if isinstance(call.func, ast.Name | ast.Attribute)
        and (call.func.id if isinstance(call.func, ast.Name) else call.func.attr) == "Item"
        and call.args
    ]


def test_only_the_constructors_fill_items_by_position(root: Path, tracked: list[Path]) -> None:
    sources = [p for p in tracked if p.suffix == ".py" and p != ITEMS]
    assert not [f"{p}:{line}" for p in sources for line in positional_items(root / p)]
