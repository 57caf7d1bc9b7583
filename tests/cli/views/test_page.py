"""The report as a page and as text."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console
from tests.cli.runs import two_zones

from bamboo_cli.run.figures import facts
from bamboo_cli.run.model import Account, Run, Span
from bamboo_cli.views.page import page
from bamboo_cli.views.svg.page_charts import charts
from bamboo_cli.views.terminal.run_report import text_report

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def run(training: dict[str, Any]) -> Run:
    return two_zones(training)


def test_the_legend_has_the_marks_and_colours_of_the_charts(run: Run) -> None:
    html = page(run, {})
    assert "&#x25BC;</b> left after a notice" in html  # as it is drawn: on its tip
    colour = re.search(r'background:(#\w+)"></span>training paused', html)
    assert colour is not None
    assert charts(run)[1].svg.count(colour[1]) == 1  # one pause
    calm = replace(run, gone=[], pauses=[])
    assert "training paused" not in page(calm, {})
    assert "lost without notice" not in page(calm, {})
    never = replace(run.job, paused=())
    assert "<b>0</b>pauses since the start" in page(replace(calm, job=never), {})


def test_facts_are_those_of_the_whole_life_though_events_are_gone(run: Run) -> None:
    known = dict(facts(replace(run, pauses=[], gone=[])))
    assert known["pauses since the start"] == "4, 4.2 s in all (3 Loss, 1 Notice)"
    assert known["restores"] == "0, 7 steps repeated"
    assert "resumes" not in known
    once = replace(run, job=replace(run.job, repeated_steps=1))
    assert dict(facts(once))["restores"] == "0, 1 step repeated"
    assert "USD per hour now" not in known
    assert account(run, Account((1.5, 4.0), None)) == ["1.50, on demand 4.00"]
    paid = replace(run, account=Account((0.0, 0.0), (12.345, 40.0)))
    assert "USD since prices were set" in dict(facts(paid))  # nothing counts what was before
    assert account(run, Account((0.0, 0.0), (12.345, 40.0))) == ["12.35, on demand 40.00"]


def test_kinds_of_processor_are_named_once_there_are_two(training: dict[str, Any]) -> None:
    kinds = [{"device": "cpu:AVX2", "step": 0}]
    training["status"]["processors"] = kinds
    assert "kinds of processor" not in dict(facts(two_zones(training)))
    kinds.append({"device": "cpu:AVX512", "products": "d" * 64, "step": 8})
    assert dict(facts(two_zones(training)))["kinds of processor"] == (
        "cpu:AVX2 from step 0, then cpu:AVX512 (products dddddddddddd) from step 8"
    )


def account(run: Run, found: Account) -> list[str]:
    """The figures in USD that the page shows."""
    return [text for name, text in facts(replace(run, account=found)) if name.startswith("USD")]


def test_nodes_without_a_price_are_not_free(run: Run) -> None:
    missing = "without 2 nodes of no pool in the chart's prices"
    assert account(run, Account((0.0, 0.0), (0.0, 0.0), unpriced=2)) == [
        f"0.00, on demand 0.00, {missing}"
    ] * 2  # fmt: skip
    (text,) = account(run, Account((1.5, 4.0), None, unpriced=1))
    assert text == "1.50, on demand 4.00, without 1 node of no pool in the chart's prices"


def test_long_tables_are_folded(run: Run) -> None:
    job = replace(run.job, lost=1, lost_noticed=0)
    one, many = replace(run, job=job), replace(run, job=job, gone=[*run.gone] * 11)
    assert "<details open><summary>1 agent</summary>" in page(one, {})
    assert "<details><summary>11 agents</summary>" in page(many, {})


def test_a_job_that_has_not_run_has_no_empty_tables(run: Run) -> None:
    job = replace(run.job, configuration=())
    html = page(Run(job, 32, run.span), {})
    assert "Nothing has run yet" in html
    assert "<table" not in html


def test_the_page_stands_alone(run: Run) -> None:
    html = page(run, {"a": 3.6, "b": 7.2}, ["All bits are equal."])
    assert not re.search(r"<script|<link|<img|src=|@import|url\(", html)
    alone = html.replace('xmlns="http://www.w3.org/2000/svg"', "").replace("file:///", "")
    assert "://" not in alone
    assert html.count("<svg") == 4
    assert "Something is &lt;not&gt; known." in html
    assert "All bits are equal." in html
    assert "0.10 USD for 0.0194 agent-hours" in html
    assert "1970-01-01 00:16:50 UTC</td><td>gpt-p0-s1-i0" in html


def test_a_name_cannot_smuggle_markup(run: Run) -> None:
    lives = [replace(run.lives[0], zone="<script>x</script>")]
    assert "<script" not in page(replace(run, lives=lives), {})


def test_without_prices_the_page_says_so(run: Run) -> None:
    html = page(run, {})
    assert "No prices given" in html
    assert html.count("not given</td>") == 2


def test_the_page_of_a_quick_start_does_not_speak_of_money(run: Run) -> None:
    """Its machines have no price, and the command no --price."""
    html = page(run, None)
    assert "<h2>Agent-hours</h2>" in html
    assert "<td>a</td>" in html
    assert not re.search(r"USD|price|money", html)


def both(run: Run) -> list[str]:
    """The page without its markup, and the text."""
    out = io.StringIO()
    Console(file=out, width=200).print(text_report(run, {}))
    plain = re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page(run, {})))
    return [plain, re.sub(r"\s+", " ", out.getvalue())]


def test_the_hazard_of_each_zone_is_measured(run: Run) -> None:
    """b: one loss in 30 s of agents. Nobody knows for how long an agent ran in c."""
    strange = replace(run.gone[0], zone="c")
    for said in both(replace(run, gone=[*run.gone, strange])):
        assert "zone agent-hours losses losses per agent-hour" in said
        assert "a 0.0111 0 0 b 0.0083 1 120 c not known 1 not known" in said


def test_a_failed_job_says_why(training: dict[str, Any]) -> None:
    """With the state, the reason and the message of its condition, and what to do."""
    why = "gpt-p0-s1-i0: UserCodeFailed: sample 7 <tensor> is damaged"
    for status, reason, message in (("False", "NotYet", ""), ("True", "UserCodeFailed", why)):
        failed = {"type": "Failed", "status": status, "reason": reason, "message": message}
        training["status"]["conditions"] = [failed]
        run = two_zones(training)
        page_text, text = both(run)
        assert ("Failed (UserCodeFailed): " + why in text) is (status == "True")
        assert ("What to do: repair the code or the data" in text) is (status == "True")
        escaped = why.replace("<", "&lt;").replace(">", "&gt;")
        assert ("Failed (UserCodeFailed): " + escaped in page_text) is (status == "True")
        assert ("What to do: repair the code or the data" in page_text) is (status == "True")


def test_the_configuration_is_shown(run: Run) -> None:
    for said in both(run):
        assert "grid 2 pipelines x 4 stages" in said
        assert "redundancy Replica" in said
        assert "optimizer torch.optim:AdamW(lr=0.003, weight_decay=0.01)" in said
    for said in both(replace(run, job=replace(run.job, configuration=()))):
        assert "onfiguration" not in said


def test_each_pause_is_listed_with_its_cause(run: Run) -> None:
    for said in both(run):
        assert "1970-01-01 00:16:50 UTC 1.50 loss of gpt-p0-s1-i0 in zone b" in said
        assert "3 more, 2.8 s in all (2 Loss, 1 Notice): no event tells of them" in said


def test_a_validation_loss_is_shown_only_if_there_is_one(run: Run) -> None:
    for value, shown in ((3.25, True), (0.0, True), (None, False)):
        job = replace(run.job, validation_loss=value)
        assert all(("validation loss" in said) is shown for said in both(replace(run, job=job)))


def test_an_empty_run_has_a_page(run: Run) -> None:
    empty = Run(run.job, 32, Span(5.0, 5.0))
    assert "<svg" not in page(empty, {})


def test_the_text_has_the_same_figures(run: Run) -> None:
    out = io.StringIO()
    many = [replace(run.gone[0], at=1000.0 + n) for n in range(12)]
    Console(file=out, width=120).print(text_report(replace(run, gone=many), {"a": 3.6, "b": 7.2}))
    said = out.getvalue()
    for words in (
        "20 of 80", "12 (0 with notice)", "4, 4.2 s in all", "16.0", "0.10 USD", "2 before",
        "Something is <not> known.",
    ):  # fmt: skip
        assert words in said
