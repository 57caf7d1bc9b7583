"""Writes the list of modules into a Markdown file, between two markers; see scripts/gen-docs."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

BEGIN, END = "<!-- modules -->\n", "<!-- end of modules -->\n"
PACKAGES = {
    "core/bamboo_core": "decisions and protocol, pure",
    "sim/bamboo_sim": "simulation",
    "core/bamboo_wire": "core types to messages and back",
    "operator/bamboo_operator": "the operator",
    "agent/bamboo_agent": "supervisor and worker",
    "devcluster/bamboo_devcluster": "a Kubernetes control plane on this machine",
    "cli/bamboo_cli": "the `bamboo` command",
}


def purpose(path: Path) -> str:
    """First sentence-like line of a module's docstring."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return text.partition("\n")[0].rstrip(".")


def section(root: Path, folder: str, what: str) -> str:
    """Heading and one line for each module of a package."""
    package = root / folder
    modules = [path for path in sorted(package.rglob("*.py")) if path.name != "__init__.py"]
    lines = [f"- `{path.relative_to(package)}`: {purpose(path)}" for path in modules]
    return "\n".join([f"### `{folder}`: {what}", "", *lines, "", ""])


def module_list(root: Path) -> str:
    """Everything between the markers."""
    return "\n" + "".join(section(root, folder, what) for folder, what in PACKAGES.items())


def refreshed(text: str, root: Path) -> str:
    """The file's text with the list as it ought to be. ValueError if a marker is missing."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the markers {BEGIN.strip()} and {END.strip()} are missing")
    return before + begin + module_list(root) + end + after


def main() -> None:
    """Rewrite the file that is named on the command line."""
    path = Path(sys.argv[1])
    path.write_text(refreshed(path.read_text(), Path(__file__).resolve().parents[1]))


if __name__ == "__main__":
    main()
