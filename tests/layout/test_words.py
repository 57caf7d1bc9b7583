"""Old words do not come back (docs/glossary.md has the new ones); docstrings are sentences."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

OLD = re.compile(
    r"doubt(ed|s)?|lessons?|rushed|unseated|heirs?|happenings?|emission|lineage|ballots?"
    r"|parcels?|postponed|blows?|nurser(y|ies)|nurslings?|sabotage[ds]?|whom|shall|mourning",
    flags=re.I,
)
FRAGMENTS = {"Of", "What", "Who"}
PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")  # of identifiers in snake_case or CamelCase, and of prose
SUFFIXES = {".md", ".py", ".proto", ".sh", ".toml", ".tpl", ".txt", ".yaml", ".yml"}
EXCEPTIONS = {Path("tests/layout/test_words.py"): "it lists the old words"}


def old_words(text: str) -> Iterator[str]:
    """Parts of identifiers and words of prose that the glossary has replaced."""
    return (part for part in PART.findall(text) if OLD.fullmatch(part))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("is_postponed(x)", ["postponed"]),
        ("class BigLesson: ...", ["Lesson"]),
        ("OLD_BALLOTS = 1", ["BALLOTS"]),
        ("theirs, doubtful, shallow", []),
    ],
)
def test_old_words_are_found_in_identifiers_and_prose(text: str, words: list[str]) -> None:
    assert list(old_words(text)) == words


def test_files_use_the_words_of_the_glossary(root: Path, tracked: list[Path]) -> None:
    files = [
        path
        for path in tracked
        if (path.suffix in SUFFIXES or path.parent == Path("scripts")) and path not in EXCEPTIONS
    ]
    assert len(files) > 300
    found = [f"{path}: its name" for path in files if any(old_words(str(path)))]
    for path in files:
        for number, line in enumerate((root / path).read_text().splitlines(), start=1):
            found += [f"{path}:{number}: {word}" for word in old_words(line)]
    assert found == []


def fragments(text: str) -> Iterator[str]:
    """Functions of a file whose docstring begins with a fragment instead of a sentence."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = re.match(r"\w+", ast.get_docstring(node) or "")
            if first and first[0] in FRAGMENTS:
                yield f"{node.name}: {first[0]}"


def test_fragments_are_found() -> None:
    text = '''
def one() -> None:
    """Of one mode."""
class Two:
    """Of one mode."""
    async def three(self) -> None:
        """What is left."""
    def four(self) -> None:
        """Whose it is, or Who."""
'''
    assert list(fragments(text)) == ["one: Of", "three: What"]


def test_docstrings_of_functions_begin_with_a_sentence(root: Path, tracked: list[Path]) -> None:
    found = [
        f"{path}: {fragment}"
        for path in tracked
        if path.suffix == ".py" and "bamboo_proto" not in path.parts
        for fragment in fragments((root / path).read_text())
    ]
    assert found == []
