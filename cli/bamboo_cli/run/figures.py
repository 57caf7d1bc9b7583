"""The figures of a run that come first in every report, in words. Pure."""

from __future__ import annotations

from bamboo_cli.job import left
from bamboo_cli.job.state import Job
from bamboo_cli.run.model import Account, Run, clock
from bamboo_core.model.counts import counted, duration

_LONG_S = 600.0


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
        ("validation loss", f"{job.validation_loss:.4f}" if job.validation_loss else ""),
        ("samples/s, pauses included", f"{rate:.1f}" if rate is not None and run.batch else ""),
        ("agents lost since the start", f"{job.lost} ({job.lost_noticed} with notice)"),
        ("pauses since the start", _pauses(job)),
        ("restores", _restores(job)),
        ("kinds of processor", _processors(job)),
        *_account(run.account),
    ]
    return [(name, value) for name, value in shown if value]


def _pauses(job: Job) -> str:
    if not job.pauses:
        return "0"
    causes = ", ".join(f"{each.count} {each.cause}" for each in job.paused if each.count)
    return f"{job.pauses}, {_pause_text(job.paused_s)} in all ({causes})"


def _restores(job: Job) -> str:
    again = f", {counted(job.repeated_steps, 'step')} repeated" if job.repeated_steps else ""
    return f"{job.attempt}{again}"


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
        rows.append(("USD since the start", _usd(account.spent) + missing))
    return rows


def _usd(found: tuple[float, float]) -> str:
    paid, on_demand = found
    return f"{paid:.2f}, on demand {on_demand:.2f}"


def _pause_text(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < _LONG_S else duration(seconds)
