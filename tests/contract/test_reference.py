"""docs/reference and docs/troubleshooting.md cover exactly what the code has."""

from __future__ import annotations

import json
import re
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
import yaml
from scripts.reference import fields, figures, meanings, series
from scripts.reference.__main__ import pages

from bamboo_core.api.events import FACTS, EventFact, EventReason, RestoreCause, StallCause
from bamboo_core.api.reasons import ConditionType, FailureCause, JobPhase, Reason
from bamboo_core.api.spec import JobSpec
from bamboo_core.validation.reading import from_manifest

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks/results"
ENUMS = [JobPhase, ConditionType, Reason, FailureCause, EventReason, EventFact]


@pytest.fixture(scope="module")
def definition() -> Any:
    crd = yaml.safe_load((ROOT / "crds/bamboojobs.yaml").read_text())
    return crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]


def test_pages_are_what_the_code_says() -> None:
    for path, text in pages().items():
        assert (ROOT / path).read_text() == text, f"{path}: run scripts/gen-docs"


def test_every_field_is_on_the_page(definition: Any) -> None:
    page = (ROOT / "docs/reference/spec.md").read_text()
    for path, _ in fields.fields("spec", definition):
        parent, _, name = path.rpartition(".")
        section = page.split(f"\n## `{parent}`\n")[1].split("\n## ")[0]
        assert f"\n| `{name}` |" in section, path


def test_every_field_has_a_description(definition: Any) -> None:
    found = fields.fields("spec", definition)
    assert [path for path, node in found if not node.get("description")] == []


def test_the_job_with_every_field_is_accepted() -> None:
    job = yaml.safe_load((ROOT / "docs/reference/every-field.yaml").read_text())
    assert isinstance(from_manifest(job), JobSpec)


def test_every_training_field_that_decides_the_result_is_fixed(definition: Any) -> None:
    rules = [rule["rule"] for rule in definition["x-kubernetes-validations"]]
    (fixed,) = [rule for rule in rules if rule.startswith("self.training.globalBatchSize ==")]
    named = set(re.findall(r"\bself\.training\.(\w+) == oldSelf\.training\.\1\b", fixed))
    assert named == set(definition["properties"]["training"]["properties"]) - {
        "onNonFinite",
        "steps",
    }


@pytest.mark.parametrize("enum", ENUMS)
def test_every_member_has_a_description(enum: type[StrEnum]) -> None:
    found = meanings.members(enum)
    assert [m.value for m in found] == list(enum)
    assert [m.value for m in found if not m.text] == []


def test_every_metric_is_described() -> None:
    rows = re.findall(r"^\| `(bamboo_\w+)` \|.*\| (.*) \|$", series.metrics_page(), re.M)
    assert len(rows) > 30
    assert [name for name, text in rows if len(text.split()) < 2] == []


def test_every_result_file_has_its_figures_on_the_page() -> None:
    page = (ROOT / "docs/reference/figures.md").read_text()
    sections = dict(re.findall(r"^## `(\w+)`\n(.*?)(?=^## |\Z)", page, re.M | re.S))
    files = {path.stem: json.loads(path.read_text()) for path in RESULTS.glob("*.json")}
    assert sections.keys() == files.keys()
    for name, result in files.items():
        assert figures.measured(result) in sections[name]
        rows = re.findall(r"^\| `([\w.-]+)` \| (.*) \|$", sections[name], re.M)
        assert {figure: json.loads(x) for figure, x in rows} == result["figures"], name


def test_a_program_that_exists_is_summarized() -> None:
    assert figures.summary(ROOT / "benchmarks/soak.py").startswith("Random faults in long-lived")
    explorer = ROOT / "sim/bamboo_sim/protocol/__main__.py"
    assert figures.summary(explorer).startswith("Explores histories")


def test_every_event_names_its_facts() -> None:
    assert list(FACTS) == list(EventReason)
    assert {fact for facts in FACTS.values() for fact in facts} == set(EventFact)


def test_the_page_says_when_each_field_can_change() -> None:
    """As the rules of the custom resource say."""
    page = (ROOT / "docs/troubleshooting.md").read_text().partition("## What can change")[2]
    page = page.partition("\n## ")[0]
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    named = [set(re.findall(r"`([\w.]+)`", row)) for row in rows]
    versions = yaml.safe_load((ROOT / "crds/bamboojobs.yaml").read_text())["spec"]["versions"]
    root = versions[0]["schema"]["openAPIV3Schema"]
    spec = root["properties"]["spec"]
    fields = {name.split(".")[0] for names in named for name in names}
    assert fields - {"uri"} == spec["properties"].keys()

    def told(node: Any, words: str) -> set[str]:
        texts = [rule["message"] for rule in node["x-kubernetes-validations"]]
        found = (re.match(rf"spec\.([\w.]+) .*{words}", text) for text in texts)
        return {match[1].removesuffix(".channel") for match in found if match}

    assert named[1] - {"uri"} == told(root, "cannot change while agents have a plan")
    assert named[2] == told(root, "cannot change until spec.suspend is true")
    assert named[3] == told(spec, " and cannot change:")


def test_every_reason_has_an_entry_in_troubleshooting() -> None:
    page = (ROOT / "docs/troubleshooting.md").read_text()
    found: dict[str, set[str]] = {}
    for section in re.split(r"^## ", page, flags=re.M)[1:]:
        if condition := re.match(r"`(\w+)`", section):
            found[condition[1]] = set(re.findall(r"^\| `(\w+)` \|", section, re.M))
    expected: dict[str, set[str]] = {condition: set() for condition in ConditionType}
    for reason, conditions in meanings.conditions_of_reasons().items():
        for condition in conditions:
            expected[condition].add(reason)
    assert found == expected
    assert list(found) == list(ConditionType)


def test_every_event_has_an_entry_in_troubleshooting() -> None:
    page = (ROOT / "docs/troubleshooting.md").read_text()
    section = page.split("\n## Events\n")[1]
    cells = re.findall(r"^\| (`.*?) \|", section, re.M)
    assert set(re.findall(r"`(\w+)`", " ".join(cells))) == set(EventReason)


def test_every_cause_of_a_failure_has_an_entry_in_troubleshooting() -> None:
    page = (ROOT / "docs/troubleshooting.md").read_text()
    section = page.split("\n## Failures of agents\n")[1].split("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \|", section, re.M)
    assert set(re.findall(r"`(\w+)`", " ".join(cells))) == set(FailureCause)


def test_every_cause_of_a_stall_and_of_a_restore_is_on_the_page() -> None:
    page = (ROOT / "docs/reference/status.md").read_text()
    (row,) = re.findall(r"^\| `cause` \| (.*) \|$", page, re.M)
    assert [c for c in (*StallCause, *RestoreCause) if not re.search(rf"\b{c}\b", row)] == []


def test_every_reason_and_event_is_used() -> None:
    sources = [
        *ROOT.glob("core/bamboo_core/*/*.py"),
        *ROOT.glob("operator/bamboo_operator/**/*.py"),
    ]
    text = "".join(p.read_text() for p in sources if p.name != "reasons.py")
    words = [f"Reason.{r.name}" for r in Reason] + [f"EventReason.{h.name}" for h in EventReason]
    assert [w for w in words if not re.search(rf"\b{re.escape(w)}\b", text)] == []
