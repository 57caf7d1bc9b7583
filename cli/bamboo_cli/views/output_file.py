"""Files that commands write at their end."""

from __future__ import annotations

from pathlib import Path

from bamboo_cli.errors import CommandError


def check_file(option: str, path: Path | None, example: str) -> None:
    """CommandError if the file could not be written at the end, since it is a folder, or for want
    of its folder. example: a name that would do."""
    if path is None:
        return
    if path.is_dir():
        raise CommandError(
            f"{option} needs the name of a file, such as {example}; {path} is a folder."
        )
    if not path.parent.is_dir():
        raise CommandError(f"{option} {path}: the folder {path.parent} does not exist; create it.")


def write_file(path: Path, text: str) -> None:
    """CommandError if it cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(
            f"{path} cannot be written ({error.strerror or error}); make room or mend that, or name"
            " another file."
        ) from error
