"""Nothing of one person's machine gets into the repository."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path


def one_of(*halves: tuple[str, str]) -> re.Pattern[str]:
    """Match any of the texts; they are given in halves, so that this file does not match."""
    return re.compile("|".join(re.escape(first + second) for first, second in halves))


MACHINE_PATHS = one_of(("/wo", "rk/"), ("/fa", "rm/"), (".lib", "rary"), ("/tmp/bash", "_jobs"))
INDEX_HOSTS = one_of(
    ("pypi.", "org"), ("files.python", "hosted"), ("proxy.golang", ".org"), ("registry.npm", "js")
)
PRIVATE_KEYS = re.compile("BEGIN [A-Z ]*PRIVATE" + " KEY")
LARGEST_BYTES = 500_000


def readable(root: Path, tracked: list[Path]) -> dict[Path, str]:
    texts = {}
    for path in tracked:
        try:
            texts[path] = (root / path).read_text()
        except UnicodeDecodeError:
            continue
    return texts


def lines_with(pattern: re.Pattern[str], texts: dict[Path, str]) -> list[str]:
    return [
        f"{path}:{number}: {line.strip()[:100]}"
        for path, text in texts.items()
        for number, line in enumerate(text.splitlines(), start=1)
        if pattern.search(line)
    ]


def test_no_paths_of_a_machine(root: Path, tracked: list[Path]) -> None:
    assert not lines_with(MACHINE_PATHS, readable(root, tracked))


def test_no_addresses_of_package_registries(root: Path, tracked: list[Path]) -> None:
    assert not lines_with(INDEX_HOSTS, readable(root, tracked))


def test_no_private_keys(root: Path, tracked: list[Path]) -> None:
    assert not lines_with(PRIVATE_KEYS, readable(root, tracked))


def test_no_large_files(root: Path, tracked: list[Path]) -> None:
    sizes = {str(path): (root / path).stat().st_size for path in tracked}
    assert not {name: size for name, size in sizes.items() if size > LARGEST_BYTES}


def test_no_merge_markers(root: Path, tracked: list[Path]) -> None:
    assert not lines_with(re.compile("^(<{7} |>{7} )"), readable(root, tracked))


def test_generated_folders_are_ignored(root: Path) -> None:
    for name in (".venv", ".mypy_cache", ".import_linter_cache", "core/bamboo_core/__pycache__"):
        command = ["git", "check-ignore", "--quiet", f"{name}/x"]
        assert subprocess.run(command, cwd=root, check=False).returncode == 0, name
