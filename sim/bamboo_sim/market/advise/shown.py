"""Advice as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Any

from bamboo_sim.market.advise.recommendation import Advice, Wish
from bamboo_sim.market.advise.search import Answer, Result
from bamboo_sim.market.compare.text import prices_of

_COLUMNS = ("grid", "mode", "spot", "on demand", "hours", "9 of 10", "dollars")


def as_text(answer: Answer, wish: Wish, found: Advice) -> str:
    """The recommendation, the front, and what it rests on."""
    setting, front = answer.question.setting, answer.front
    lines = [
        *found.why,
        "",
        f"{setting.profile.name}, {answer.question.samples:g} samples on spot nodes of"
        f" {Path(setting.fleets.name).name}; network: {setting.network.name}.",
        f"None of {len(answer.results)} candidates is both faster and cheaper than one of these"
        f" (means of {answer.question.seeds} histories):",
        *_table(front, wish, found.best),
        "",
        "hours: the mean; 9 of 10: what nine of ten histories need at most."
        " in time, paid: the part of the histories that keeps --deadline and --budget.",
        "",
        "Assumed:",
        *(f"  {line}" for line in assumed(answer)),
    ]
    return "\n".join(lines)


def assumed(answer: Answer) -> list[str]:
    """Rules and values that the advice rests on, with sources."""
    setting = answer.question.setting
    return [
        "The first history is the record as it is; each other one begins anywhere in it. At its end"
        " the record begins again. Markets are drawn.",
        "A job rents at most the nodes of its grid, and replaces a lost one where the record has"
        " another node. What it does not rent costs nothing.",
        "The start is free but for the boot. Steps, losses and prices are those of"
        " `bamboo sim compare`, with step times of a job that may have any of the grids.",
        "Nodes on demand are never lost. The network is each node's own: zones cost no more.",
        *prices_of(setting),
        f"boot_ms = {setting.common.boot_ms} ms; detect_ms = {setting.common.detect_ms} ms;"
        f" notice_ms = {setting.common.notice_ms} ms [as in `bamboo sim compare`]",
    ]


def as_json(answer: Answer, wish: Wish, found: Advice) -> dict[str, Any]:
    """All computed candidates, the fastest first."""
    setting, front = answer.question.setting, answer.front
    return {
        "source": Path(setting.fleets.name).name,
        "model": setting.profile.name,
        "network": setting.network.name,
        "samples": answer.question.samples,
        "histories": answer.question.seeds,
        "guessed": answer.tried,
        "deadline_h": None if wish.deadline_h == inf else wish.deadline_h,
        "budget": None if wish.budget == inf else wish.budget,
        "sure": wish.sure,
        "recommended": found.best.candidate.name,
        "why": list(found.why),
        "candidates": [
            {
                **_row_json(result, wish, answer.question.samples),
                "is_on_front": result in front,
                "is_recommended": result is found.best,
            }
            for result in answer.results
            if result.hours < inf
        ],
        "assumptions": assumed(answer),
    }


def _row_json(result: Result, wish: Wish, samples: float) -> dict[str, Any]:
    candidate = result.candidate
    return {
        "name": candidate.name,
        "pipelines": candidate.grid.pipelines,
        "stages": candidate.grid.stages,
        "mode": candidate.mode,
        "spot": candidate.spot,
        "on_demand": candidate.steady,
        "zones": list(candidate.zones),
        "hours": result.hours,
        "hours_9_of_10": result.slow_hours,
        "dollars": result.dollars,
        "samples_per_dollar": samples / result.dollars,
        "in_time": result.share(wish.is_in_time),
        "paid": result.share(wish.is_paid),
        "trials": [list(trial) for trial in result.trials],
    }


def _table(front: Sequence[Result], wish: Wish, best: Result) -> list[str]:
    heads = [*_COLUMNS, "in time", "paid", "zones"]
    rows = [heads, *(_row(x, wish, x is best) for x in front)]
    if best not in front:
        rows.append(_row(best, wish, is_best=True))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  " + "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]


def _row(result: Result, wish: Wish, is_best: bool) -> list[str]:
    candidate = result.candidate
    pipelines, stages = candidate.grid
    return [
        f"{'* ' if is_best else ''}{pipelines} x {stages}",
        str(candidate.mode),
        str(candidate.spot),
        str(candidate.steady),
        f"{result.hours:.2f}",
        f"{result.slow_hours:.2f}",
        f"{result.dollars:.2f}",
        "-" if wish.deadline_h == inf else f"{result.share(wish.is_in_time):.0%}",
        "-" if wish.budget == inf else f"{result.share(wish.is_paid):.0%}",
        ", ".join(candidate.zones) or "all",
    ]
