"""References in docstrings such as :mod:`.sums` lead to modules that exist."""

from __future__ import annotations

import re
from pathlib import Path

REFERENCE = re.compile(r":(?:mod|data|func|class|meth):`~?\.((?:[a-z]\w*\.)*[a-z]\w*)")


def test_relative_references_name_modules(root: Path, modules: list[Path]) -> None:
    found = missing = 0
    lost = []
    for path in modules:
        for name in REFERENCE.findall((root / path).read_text()):
            found += 1
            first, *rest = name.split(".")
            folder = (root / path).parent
            while rest and (folder / first).is_dir():
                folder, (first, *rest) = folder / first, rest
            if not (folder / f"{first}.py").is_file():
                lost.append(f"{path}: .{name}")
                missing += 1
    assert found > 5
    assert lost == []
