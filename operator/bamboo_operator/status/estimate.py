"""``status.pace`` and ``status.estimate``: how fast the job comes nearer to its end, and what time
and money that still takes."""

from __future__ import annotations

from bamboo_core.api.reasons import JobPhase
from bamboo_core.api.totals import TimeState
from bamboo_core.job.pace import Mark, Pace, clock_s
from bamboo_core.model.counts import duration
from bamboo_operator.kube.api import Object
from bamboo_operator.money.prices import Rate
from bamboo_operator.status import totals

UNKNOWN = "not known yet"
_AWAY = (JobPhase.RUNNING, JobPhase.RECOVERING)
_OVER = (JobPhase.COMPLETE, JobPhase.FAILED)


def write(new: Object, old: Object, rate: Rate | None, now: float) -> Object:
    """The two fields for the status ``new``; old: the present one. None of them after the end.

    The estimate is made when a step is committed, so that a job that stands still is not written
    again and again. Nobody knows when agents come, so there is none while it waits for them. rate:
    None: there are no prices.
    """
    if new["phase"] in _OVER:
        return {}
    times, steps = totals.read_times(new), int(new["progress"]["steps"])
    mark = Mark(round(clock_s(times, now), 1), int(new["progress"]["step"]))
    is_news = mark.step != (old.get("progress") or {}).get("step")
    pace = _read(old.get("pace"))
    pace = pace.seen(mark) if is_news else pace
    marks = [{"seconds": m.clock_s, "step": m.step} for m in pace.marks]
    found: Object = {"pace": marks} if marks else {}
    if new["phase"] not in _AWAY:
        return found
    if times.state is TimeState.WAITING_FOR_CAPACITY:
        return found | {"estimate": _estimate(None, rate)}
    known = old.get("estimate")
    if known is None or is_news:
        known = _estimate(pace.left_s(mark, steps), rate)
    return found | {"estimate": known}


def _estimate(left_s: float | None, rate: Rate | None) -> Object:
    if left_s is None:
        return {"timeLeft": UNKNOWN}
    found: Object = {"timeLeft": duration(left_s), "secondsLeft": round(left_s)}
    if rate is not None:
        found["dollarsLeft"] = round(left_s / 3600 * rate.dollars_per_hour, 2)
    return found


def _read(value: object) -> Pace:
    marks = value if isinstance(value, list) else []
    return Pace(tuple(Mark(float(m["seconds"]), int(m["step"])) for m in marks))
