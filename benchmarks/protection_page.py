"""Fills docs/choosing-protection.md from the result files: tables, plots, or what is not measured.

A block between ``<!-- NAME -->`` and ``<!-- end -->`` is replaced; ``protection_choice.py`` calls
:func:`write`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from math import log10
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "choosing-protection.md"
IMAGES = ROOT / "docs" / "images"
RESULTS = ROOT / "benchmarks" / "results"
_BLOCK = re.compile(r"^<!-- (?P<name>\w+) -->\n.*?^<!-- end -->$", flags=re.M | re.S)
_COLOURS = {"None": "#c8cdd3", "Replica": "#0969da", "Eager": "#4ac26b"}
_INK, _FONT = "#1f2328", "font-family='system-ui, sans-serif' font-size='12'"
_LEFT, _WIDTH, _ROW = 210, 780, 20

Result = Mapping[str, Any]


# ---------------------------------------------------------------- plots


def svg(title: str, height: float, parts: Sequence[str]) -> str:
    """A document with a legend of the modes."""
    legend = [
        f"<rect x='{_LEFT + 90 * i}' y='30' width='12' height='12' fill='{colour}'/>"
        f"<text x='{_LEFT + 90 * i + 18}' y='40'>{mode}</text>"
        for i, (mode, colour) in enumerate(_COLOURS.items())
    ]
    head = f"<text x='8' y='18' font-weight='bold'>{escape(title)}</text>"
    size = f"width='{_WIDTH}' height='{height:.0f}' viewBox='0 0 {_WIDTH} {height:.0f}'"
    body = "\n".join([head, *legend, *parts])
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' {size} {_FONT} fill='{_INK}'>\n"
        f"<rect width='100%' height='100%' fill='white'/>\n{body}\n</svg>\n"
    )


def _text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}'>{escape(words)}</text>"


def _rect(x: float, y: float, width: float, colour: str, height: float = 12) -> str:
    return f"<rect x='{x:.1f}' y='{y:.1f}' width='{width:.1f}' height='{height}' fill='{colour}'/>"


def bars(title: str, groups: Mapping[str, Mapping[str, float]], unit: str) -> str:
    """Horizontal bars: group -> mode -> value."""
    most = max((v for group in groups.values() for v in group.values()), default=1.0) or 1.0
    parts, y = list[str](), 60.0
    for name, group in groups.items():
        parts.append(_text(_LEFT - 8, y + 14, name, "end"))
        for mode, value in group.items():
            width = max(1.0, (_WIDTH - _LEFT - 90) * value / most)
            parts.append(_rect(_LEFT, y, width, _COLOURS[mode]))
            parts.append(_text(_LEFT + width + 6, y + 10, f"{value:.3g} {unit}"))
            y += 15
        y += 8
    return svg(title, y + 10, parts)


def choice_plot(rows: Sequence[Mapping[str, Any]]) -> str:
    """Which mode is taken at which hazard, one bar for each size of stage and network."""
    low, high = 1e-3, 10.0

    def x(hazard: float | None) -> float:
        share = (log10(min(max(hazard or high, low), high)) - log10(low)) / (log10(high / low))
        return _LEFT + share * (_WIDTH - _LEFT - 20)

    parts, y = list[str](), 62.0
    for d in sorted({r["pipelines"] for r in rows}):
        parts.append(_text(8, y + 10, f"D = {d}, P = 8"))
        for r in (r for r in rows if r["pipelines"] == d and r["stages"] == 8):
            parts.append(_text(_LEFT - 8, y + 10, f"{r['stage_mb']} MB, {r['gbps']} Gb/s", "end"))
            first, second = x(r["replica_from"]), x(r["eager_from"])
            parts.append(_rect(_LEFT, y, x(high) - _LEFT, _COLOURS["None"]))
            parts.append(_rect(first, y, x(high) - first, _COLOURS["Replica"]))
            if r["eager_from"] is not None:
                parts.append(_rect(second, y, x(high) - second, _COLOURS["Eager"]))
            y += _ROW
        y += 8
    for hazard in (0.001, 0.01, 0.1, 1.0, 10.0):
        parts.append(_text(x(hazard), y + 12, f"{hazard:g}", "middle"))
    parts.append(_text((_LEFT + _WIDTH) / 2, y + 28, "losses per agent-hour", "middle"))
    return svg("The mode that costs least", y + 40, parts)


# ---------------------------------------------------------------- blocks


def _rows(result: Result) -> list[dict[str, Any]]:
    columns = result["samples"]
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]


def _measured(name: str, result: Result) -> str:
    return f"From `benchmarks/results/{name}.json` of {result['commit']}."


def _hazard(value: float | None) -> str:
    if value is None:
        return "never"
    return "always" if value <= 1e-4 else f"{value:.2g}"


def choice_block(result: Result) -> tuple[str, dict[str, str]]:
    """Table and plot of ``protection_choice``."""
    rows = _rows(result)
    shown = {(r["pipelines"], r["stage_mb"], r["gbps"]): r for r in rows if r["stages"] == 8}
    networks = sorted({gbps for _, _, gbps in shown})
    titles = [f"{mode}, {gbps} Gb/s" for mode in ("Replica", "Eager") for gbps in networks]
    lines = [f"| D | stage | {' | '.join(titles)} |", "|---" * (2 + len(titles)) + "|"]
    for d, size in dict.fromkeys((d, size) for d, size, _ in shown):
        found = [shown[d, size, gbps] for gbps in networks]
        cells = [_hazard(r[key]) for key in ("replica_from", "eager_from") for r in found]
        lines.append(f"| {d} | {size} MB | {' | '.join(cells)} |")
    text = "![Modes by hazard](images/protection-choice.svg)\n\n" + "\n".join(lines)
    return text, {"protection-choice.svg": choice_plot(rows)}


def overhead_block(result: Result) -> tuple[str, dict[str, str]]:
    """Table and plot of ``redundancy_overhead``."""
    samples: Mapping[str, Mapping[str, Any]] = result["samples"]
    lines = [
        "| job | step | Replica | Eager | computed ahead | in host memory | device memory: None,"
        " Replica, Eager |",
        "|---|---|---|---|---|---|---|",
    ]
    groups: dict[str, dict[str, float]] = {}
    for name, found in samples.items():
        ratios = {mode: found.get(f"{mode.lower()}_over_none") for mode in ("Replica", "Eager")}
        groups[name] = {m: 100 * (ratio - 1) for m, ratio in ratios.items() if ratio is not None}
        cells = " | ".join(
            f"{groups[name][mode]:.1f} %" if mode in groups[name] else "does not fit"
            for mode in ratios
        )
        memory = ", ".join(
            f"{found[x]:.3g}" for x in ("none_gb", "replica_gb", "eager_gb") if x in found
        )
        share = f"{found['ahead']:.0%}" if "ahead" in found else "-"
        hosts = "; ".join(
            f"{mode}: {found[x]}" for mode in ratios if (x := f"{mode.lower()}_hosts") in found
        )
        lines.append(
            f"| {name} | {found['step_s']:.3g} s | {cells} | {share} | {hosts or '-'} |"
            f" {memory} GB |"
        )
    text = "![Overheads](images/protection-overhead.svg)\n\n" + "\n".join(lines)
    plot = bars("How much longer an undisturbed step takes than in mode None", groups, "%")
    return text, {"protection-overhead.svg": plot}


def pause_block(result: Result) -> tuple[str, dict[str, str]]:
    """Table and plot of ``frc_value``."""
    samples: Mapping[str, Mapping[str, Any]] = result["samples"]
    lines = [
        "| grid | Replica | Eager | shorter by | Eager is faster above (losses per agent-hour) |",
        "|---|---|---|---|---|",
    ]
    groups: dict[str, dict[str, float]] = {}
    for name, found in samples.items():
        groups[name] = {"Replica": found["replica_pause_s"], "Eager": found["eager_pause_s"]}
        hazard = "never" if found["hazard"] < 0 else f"{found['hazard']:.3g}"
        cells = " | ".join(f"{value:.3g} s" for value in groups[name].values())
        lines.append(f"| {name} | {cells} | {found['shorter_by']:.0%} | {hazard} |")
    text = "![Pauses](images/protection-pause.svg)\n\n" + "\n".join(lines)
    return text, {"protection-pause.svg": bars("Pause after a loss", groups, "s")}


def loss_block(result: Result) -> tuple[str, dict[str, str]]:
    """The ways to share lost work: a row for each, a column for each network."""
    samples, figures = result["samples"], result["figures"]
    ways = list(dict.fromkeys(way for row in samples.values() for way in row if way != "taken"))
    lines = [
        f"| way | {' | '.join(samples)} |",
        "|---" * (len(samples) + 1) + "|",
        "| (a step without a loss) | "
        + " | ".join(f"{figures[f'usual_{n.split()[0]}_gbps_s']:.2f} s" for n in samples)
        + " |",
    ]
    for way in ways:
        cells = []
        for row in samples.values():
            cell = str(row.get(way, "as another"))
            cells.append(f"**{cell}**" if row["taken"] == way else cell)
        lines.append(f"| `{way}` | {' | '.join(cells)} |")
    return "\n".join(lines), {}


_Fill = Callable[[Result], tuple[str, dict[str, str]]]
BLOCKS: Mapping[str, _Fill] = {
    "one_loss": loss_block,
    "protection_choice": choice_block,
    "redundancy_overhead": overhead_block,
    "frc_value": pause_block,
}


def load() -> dict[str, Result]:
    """The results that exist."""
    paths = {name: RESULTS / f"{name}.json" for name in BLOCKS}
    return {name: json.loads(p.read_text()) for name, p in paths.items() if p.exists()}


def filled(page: str, results: Mapping[str, Result]) -> tuple[str, dict[str, str]]:
    """The page with its blocks, and its plots by file name. ValueError: a block is unknown."""
    plots: dict[str, str] = {}

    def block(match: re.Match[str]) -> str:
        name = match["name"]
        if name not in BLOCKS:
            raise ValueError(f"there is no block {name}; blocks: {', '.join(BLOCKS)}")
        text = f"Not measured yet: `python benchmarks/{name}.py` writes the figures."
        if name in results:
            body, drawn = BLOCKS[name](results[name])
            plots.update(drawn)
            text = f"{_measured(name, results[name])}\n\n{body}"
        return f"<!-- {name} -->\n{text}\n<!-- end -->"

    return _BLOCK.sub(block, page), plots


def write() -> None:
    """Update page and plots."""
    page, plots = filled(PAGE.read_text(encoding="utf-8"), load())
    for name, plot in plots.items():
        (IMAGES / name).write_text(plot, encoding="utf-8")
    PAGE.write_text(page, encoding="utf-8")
    print(f"-> {PAGE}")
