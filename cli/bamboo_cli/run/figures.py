"""The figures of a run that come first in every report, in words. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from bamboo_cli.job import left
from bamboo_cli.job.state import Job, paused_text
from bamboo_cli.run.model import NOTICED, Account, Hazard, Pause, Run, amount_text, clock
from bamboo_core.api.spec import RedundancyMode
from bamboo_core.model.counts import counted, duration

_NO_EVENT = "no event tells of them"


def head(run: Run) -> str:
    """The grid, the phase, and the time that is shown."""
    job, span = run.job, run.span
    grid = f"{_number(job.pipelines, 'pipeline')} x {_number(job.stages, 'stage')}"
    return (
        f"{grid}, {job.phase}. Shown:"
        f" {clock(span.begin)} to {clock(span.end)} ({duration(span.seconds)})."
    )


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def facts(run: Run) -> list[tuple[str, str]]:
    """(name, value) of the figures that come first."""
    job = run.job
    rate = run.rate
    shown = [
        ("steps", f"{job.step} of {job.steps}"),
        ("time to the end", left.time_text(job)),
        ("USD to the end", left.usd_text(job)),
        ("training loss", f"{job.loss:.4f}" if job.loss is not None else ""),
        ("validation loss", "" if job.validation_loss is None else f"{job.validation_loss:.4f}"),
        *((name, f"{value:.6g}") for name, value in job.metrics.items()),
        *((f"validation {name}", f"{v:.6g}") for name, v in job.validation_metrics.items()),
        ("samples/s, pauses included", f"{rate:.1f}" if rate is not None and run.batch else ""),
        ("agents lost since the start", lost_text(run)),
        ("pauses since the start", _pauses(run)),
        ("restores", _restores(job)),
        ("resumes", str(job.resumes) if job.resumes else ""),
        ("restores or resumes before", str(job.other_attempts) if job.other_attempts else ""),
        ("redundancy", _redundancy(job)),
        ("kinds of processor", _processors(job)),
        *_account(run.account),
    ]
    return [(name, value) for name, value in shown if value]


def _redundancy(job: Job) -> str:
    """The mode that Auto has taken last, and why if it is known; empty: the spec names one."""
    if not job.redundancy or dict(job.configuration).get("redundancy") != RedundancyMode.AUTO:
        return ""
    why = f": {job.redundancy_reason}" if job.redundancy_reason else ""
    return f"{job.redundancy}, taken by Auto{why}"


def lost_text(run: Run) -> str:
    """How many agents were lost, and how many of them with notice."""
    return f"{run.losses.total} ({run.losses.by_kind.get(NOTICED, 0)} with notice)"


def unlisted_losses(run: Run) -> str:
    """The losses that no row of a list stands for; empty: there are none."""
    rest = run.losses
    if not rest.unlisted:
        return ""
    noticed = rest.rest.get(NOTICED, 0)
    return f"{_more(rest.unlisted, rest.listed)} ({noticed} with notice): {_NO_EVENT}"


def unlisted_pauses(run: Run) -> str:
    """The pauses that no row of a list stands for; empty: there are none."""
    rest = run.halts
    if not rest.unlisted:
        return ""
    causes = _causes(rest.rest)
    text = f"{_more(rest.unlisted, rest.listed)}, {paused_text(run.unlisted_s)} in all"
    return f"{text} ({causes}): {_NO_EVENT}"


def pause_text(pause: Pause) -> str:
    """Why training stood still."""
    return pause.why if pause.is_over else f"{pause.why} (not over)"


def hazard_text(hazard: Hazard) -> str:
    """Losses per agent-hour."""
    rate = hazard.per_agent_hour
    return "not known" if rate is None else f"{rate:.3g}"


def _more(count: int, listed: Mapping[str, int]) -> str:
    return f"{count} more" if listed else str(count)


def _pauses(run: Run) -> str:
    halts = run.halts
    if not halts.total:
        return "0"
    return f"{halts.total}, {paused_text(run.paused_s)} in all ({_causes(halts.by_kind)})"


def _causes(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {cause or 'of unknown cause'}" for cause, n in counts.items() if n)


def _restores(job: Job) -> str:
    causes = f" ({_causes(dict(job.restores))})" if job.restores else ""
    again = f", {counted(job.repeated_steps, 'step')} repeated" if job.repeated_steps else ""
    return f"{sum(count for _, count in job.restores)}{causes}{again}"


def _processors(job: Job) -> str:
    """With one kind there is nothing to say: the bits are those of an undisturbed run on it."""
    if len(job.processors) < 2:
        return ""
    return ", then ".join(f"{kind} from step {kind.step}" for kind in job.processors)


def _account(account: Account | None) -> list[tuple[str, str]]:
    if account is None:
        return []
    missing = ""
    if account.unpriced:
        nodes = counted(account.unpriced, "node")
        missing = f", without {nodes} of no pool in the chart's prices"
    rows = []
    if any(account.per_hour) or account.unpriced:
        rows.append(("USD per hour now", _usd(account.per_hour) + missing))
    if account.spent is not None:
        rows.append(("USD since prices were set", _usd(account.spent) + missing))
    return rows


def _usd(found: tuple[float, float]) -> str:
    paid, on_demand = found
    return f"{amount_text(paid)}, on demand {amount_text(on_demand)}"
