"""The elements of an SVG drawing, as text. Coordinates are in pixels. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from xml.sax.saxutils import escape

INK, MUTED, GRID = "#1f2328", "#656d76", "#d8dee4"
AGENT, LOST, NOTICED, PAUSE = "#4ac26b", "#cf222e", "#bc4c00", "#8c959f"
LINE, RING = "#0969da", "#57606a"
FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Axis:
    """Maps values between low and high to pixels between ``at`` and ``to``."""

    low: float
    high: float
    at: float
    to: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / ((self.high - self.low) or 1.0)
        return self.at + share * (self.to - self.at)

    def ticks(self, count: int) -> list[float]:
        """About ``count`` round values."""
        raw = ((self.high - self.low) or 1.0) / count
        unit = 10.0 ** floor(log10(raw))
        step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= raw)
        first, last = ceil(self.low / step - _ROUNDING), floor(self.high / step + _ROUNDING)
        return [n * step for n in range(first, last + 1)]


def text(x: float, y: float, said: str, *, anchor: str = "start", fill: str = INK,
          size: int = 12, weight: int = 400) -> str:  # fmt: skip
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}" font-size="{size}"'
        f' font-weight="{weight}">{escape(said)}</text>'
    )


def rect(x: float, y: float, width: float, height: float, fill: str, opacity: float = 1) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}"'
        f' fill-opacity="{opacity:g}"/>'
    )


def line(points: Sequence[tuple[float, float]], stroke: str, width: float) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return (
        f'<polyline points="{path}" fill="none" stroke="{stroke}" stroke-width="{width:g}"'
        ' stroke-linejoin="round"/>'
    )


def area(points: Sequence[tuple[float, float]], fill: str, opacity: float = 1) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polygon points="{path}" fill="{fill}" fill-opacity="{opacity:g}"/>'


def dot(x: float, y: float) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{LINE}"/>'


def ring(x: float, y: float) -> str:
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="none" stroke="{RING}" stroke-width="1.5"/>'
    )


def cross(x: float, y: float, r: float = 5) -> str:
    path = f"M{x - r:.1f} {y - r:.1f}l{2 * r:g} {2 * r:g}m0 {-2 * r:g}l{-2 * r:g} {2 * r:g}"
    return f'<path d="{path}" stroke="{LOST}" stroke-width="2.5"/>'


def triangle(x: float, y: float, r: float = 6) -> str:
    path = f"M{x - r:.1f} {y - r + 1:.1f}h{2 * r:g}l{-r:g} {2 * r - 2:g}z"
    return f'<path d="{path}" fill="{NOTICED}"/>'
