"""Writes a new project: a small model and data set that train, and all around them."""

from __future__ import annotations

import keyword
import re
import sys
from collections.abc import Iterator
from importlib import resources, util
from importlib.resources.abc import Traversable
from pathlib import Path

from bamboo_cli.errors import CommandError
from bamboo_core import __version__

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,51}[a-z0-9])?")
_TEMPLATE = "project"
_SKIPPED = ("__pycache__",)


def write_project(folder: Path) -> list[Path]:
    """Write it into a new folder, whose name is that of the job. Returns the files, relative to the
    folder. CommandError if the name is none of a job or hides a library, or something is there."""
    name = folder.absolute().name
    module = name.replace("-", "_")
    if not _NAME.fullmatch(name) or keyword.iskeyword(module):
        raise CommandError(
            f"{name!r} cannot name a job and a Python package: take lower-case letters, digits and"
            " dashes, at most 53, with a letter first."
        )
    if _is_taken(module):
        raise CommandError(
            f"{name!r} would hide the Python package {module} from its own code: take another name,"
            f" such as my-{name}."
        )
    if folder.exists() and any(folder.iterdir() if folder.is_dir() else [folder]):
        raise CommandError(f"{folder} exists; give the name of a new folder.")
    written = []
    for path, text in _files(resources.files("bamboo_cli.local") / _TEMPLATE):
        own = Path(path.replace("my_training", module))
        text = text.replace("my_training", module).replace("my-training", name)
        try:
            (folder / own).parent.mkdir(parents=True, exist_ok=True)
            (folder / own).write_text(text.replace("BAMBOO_VERSION", __version__), encoding="utf-8")
        except OSError as error:
            raise CommandError(f"cannot write {folder / own}: {error.strerror}.") from error
        written.append(own)
    return sorted(written)


def _is_taken(module: str) -> bool:
    """Whether Python or a library has a module of this name. A folder that is no package has no
    origin."""
    if module in sys.stdlib_module_names:
        return True
    found = util.find_spec(module)
    return found is not None and found.origin is not None


def _files(folder: Traversable, above: str = "") -> Iterator[tuple[str, str]]:
    """Path and text of each file of the template."""
    for entry in folder.iterdir():
        path = f"{above}{entry.name}"
        if entry.is_dir():
            if entry.name not in _SKIPPED:
                yield from _files(entry, f"{path}/")
        elif not entry.name.endswith(".pyc"):
            yield path, entry.read_text(encoding="utf-8")
