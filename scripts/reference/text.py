"""Words and paths that several pages share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path("docs/reference")
NOTE = "<!-- Written by scripts/gen-docs. Edit the code, not this page. -->\n"
LONGEST_EXAMPLE = 80

Schema = Mapping[str, Any]


def sentence(text: str) -> str:
    """One line, ending like a sentence."""
    text = re.sub(r"\s+", " ", text).strip().replace("**", "\\*\\*").replace("``", "`")
    if not text:
        return ""
    first = text[0].upper() if re.match(r"[a-z]+[ ,;]", text) else text[0]
    return first + text[1:] + ("" if text[-1] in ".!?" else ".")
