"""docs/reference.md lists exactly the conditions, reasons, phases and metrics that exist."""

from __future__ import annotations

import re
from pathlib import Path

from bamboo_core.api.events import EventReason
from bamboo_core.api.reasons import ConditionType, JobPhase, Reason
from bamboo_operator.metrics import Metrics

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/reference.md").read_text()


def listed(heading: str) -> list[str]:
    """The names in the first column of the table under a heading."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^\| `([^`]+)`", section, flags=re.M)


def test_phases() -> None:
    assert listed("Phases") == list(JobPhase)


def test_conditions() -> None:
    assert listed("Conditions") == list(ConditionType)


def test_reasons() -> None:
    assert listed("Reasons") == list(Reason)


def test_events() -> None:
    assert listed("Events") == list(EventReason)


def test_metrics() -> None:
    families = {family.name for family in Metrics(list).registry.collect()}
    names = sorted(name for name in families if name.startswith("bamboo_"))
    assert listed("Metrics of the operator") == names


def test_every_reason_and_event_is_used() -> None:
    sources = [*ROOT.glob("core/bamboo_core/*/*.py"), *ROOT.glob("operator/bamboo_operator/*.py")]
    text = "".join(p.read_text() for p in sources if p.name != "reasons.py")
    words = [f"Reason.{r.name}" for r in Reason] + [f"EventReason.{h.name}" for h in EventReason]
    assert [w for w in words if not re.search(rf"\b{re.escape(w)}\b", text)] == []
