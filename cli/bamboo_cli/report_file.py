"""Files that commands write at their end."""

from __future__ import annotations

from pathlib import Path

from bamboo_cli.errors import CommandError


def check_file(option: str, path: Path | None) -> None:
    """CommandError if the file could not be written at the end, for want of its folder."""
    if path is not None and not path.parent.is_dir():
        raise CommandError(f"{option} {path}: the folder {path.parent} does not exist; create it.")


def write_file(path: Path, text: str) -> None:
    """CommandError if it cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror or error}") from error
