"""Adds to a run what a Prometheus that scrapes the operator knows of it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import urllib3
from urllib3.exceptions import HTTPError, LocationValueError
from urllib3.util import parse_url

from bamboo_cli.cluster.plain_text import make_plain
from bamboo_cli.errors import CommandError
from bamboo_cli.run.model import NO_ZONE, SOON_S, Run, Span, clock

_TIMEOUT_S = 20.0
_POINTS, _LEAST_STEP_S = 500, 15.0

Points = Sequence[tuple[float, float]]
"""(Unix time in seconds, value), in order."""
Counts = Sequence[tuple[float, int]]
"""(Unix time in seconds, agents that run from then on), in order."""


def step_s(span: Span) -> float:
    """Seconds between two points of a series; whole ones."""
    return math.ceil(max(_LEAST_STEP_S, span.seconds / _POINTS))


class Prometheus:
    """A server's HTTP API; url: such as http://prometheus:9090."""

    def __init__(self, url: str) -> None:
        try:
            parsed = parse_url(url)
            is_address = parsed.scheme in ("http", "https") and bool(parsed.host)
        except LocationValueError:
            is_address = False
        if not is_address:
            raise CommandError(
                f"--prometheus {url!r} is no address; give one such as http://127.0.0.1:9090."
            )
        self._url = url.rstrip("/")
        self._pool = urllib3.PoolManager(retries=False)

    def series(self, query: str, span: Span) -> list[tuple[Mapping[str, str], Points]]:
        """(labels, values) of each series of the query in this time. CommandError if it cannot be
        had."""
        fields = {
            "query": query,
            "start": f"{span.begin:.3f}",
            "end": f"{span.end:.3f}",
            "step": f"{step_s(span):.0f}",
        }
        try:
            url = f"{self._url}/api/v1/query_range"
            answer = self._pool.request("GET", url, fields=fields, timeout=_TIMEOUT_S)
            return _read(make_plain(json.loads(answer.data)))
        except HTTPError as error:
            raise CommandError(
                f"--prometheus {self._url} does not answer ({type(error).__name__}); check the"
                " address, or forward its port with kubectl."
            ) from error
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise CommandError(
                f"--prometheus {self._url}: its answer is not that of a Prometheus ({error})."
            ) from error


def _read(answer: Any) -> list[tuple[Mapping[str, str], Points]]:
    if answer["status"] != "success":
        raise ValueError(answer.get("error", "it refused the query"))
    return [
        (each["metric"], [(float(at), float(v)) for at, v in each["values"]])
        for each in answer["data"]["result"]
    ]


def with_history(run: Run, server: Prometheus) -> Run:
    """The run with its fleet, progress and loss curve as the Prometheus has them."""
    job = run.job
    who = f'job_namespace="{job.namespace}",training_job="{job.name}"'
    # What a restore has undone is computed again, so it is no progress.
    done = f"max(bamboo_job_steps_total{{{who}}}) - max(bamboo_job_repeated_steps_total{{{who}}})"
    steps = _one(server.series(done, run.span))
    losses = dict(_one(server.series(f"max(bamboo_job_training_loss{{{who}}})", run.span)))
    workers = f'max by (zone) (bamboo_job_workers{{{who},state="running"}})'
    counts = {
        labels.get("zone", "") or NO_ZONE: _with_gaps(points, step_s(run.span))
        for labels, points in server.series(workers, run.span)
    }
    if not steps:
        text = "The Prometheus knows no series of this job; does it scrape the operator?"
        return replace(run, notes=[*run.notes, text])
    found = replace(run, counts=counts)
    first = min(at for at, _ in [*steps, *(x for points in counts.values() for x in points)])
    if first > run.span.begin + SOON_S + step_s(run.span):
        found = _with_beginning(run, counts, first)
        steps = [*(p for p in run.progress if p[0] < first), *steps]
    curve = {int(step): losses[at] for at, step in steps if math.isfinite(losses.get(at, math.nan))}
    return replace(
        found,
        progress=[(at, int(step)) for at, step in steps],
        loss=sorted(curve.items()) or run.loss,
    )


def _with_beginning(run: Run, counts: Mapping[str, Counts], first: float) -> Run:
    """Until the first time that the Prometheus knows, agents are those that the cluster knows."""
    whole: dict[str, Counts] = {}
    for zone in sorted({*run.zones, *counts}):
        early = [point for point in run.fleet(zone) if point[0] < first]
        whole[zone] = [*early, (first, 0), *counts.get(zone, ())]
    text = (
        f"The Prometheus knows nothing of this job before {clock(first)}. Until then, agents and"
        " steps are those of pods and events that the API server still has, and no loss is shown."
    )
    return replace(run, counts=whole, notes=[*run.notes, text])


def _with_gaps(points: Points, every_s: float) -> Counts:
    """A zone without agents has no value: then it counts 0."""
    found: list[tuple[float, int]] = []
    for (at, count), (following, _) in pairwise([*points, (math.inf, 0.0)]):
        found.append((at, int(count)))
        if following > at + 1.5 * every_s:
            found.append((at + every_s, 0))
    return found


def _one(found: Sequence[tuple[Mapping[str, str], Points]]) -> Points:
    return found[0][1] if found else []
