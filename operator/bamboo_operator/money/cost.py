"""``status.cost``: what a job's nodes cost, and have cost since the operator has prices."""

from __future__ import annotations

from bamboo_operator.kube.api import Object
from bamboo_operator.kube.timestamps import precise_instant, timestamp
from bamboo_operator.money.prices import Rate

_MOST_NAMES = 64


def write(rate: Rate | None, old: Object, now: float) -> Object | None:
    """``status.cost``, of which ``old`` is the present value. Pools that are used no more stay.

    ``dollars`` counts until ``since``; from then on the present rate holds, so nothing has to be
    written while it stays. While no operator looks, the last rate counts. Names of pools and zones
    are labels, so they are short.
    """
    if rate is None:
        return None
    known = {k: v for k, v in (old.get("pools") or {}).items() if k not in rate.pools}
    room = max(0, _MOST_NAMES - len(rate.pools))
    kept = dict(sorted(known.items())[:room])
    rates = {
        "dollarsPerHour": round(rate.dollars_per_hour, 4),
        "onDemandDollarsPerHour": round(rate.on_demand_dollars_per_hour, 4),
    }
    since = timestamp(old.get("since"))
    if since is not None and all(old.get(name) == value for name, value in rates.items()):
        spent = {name: old[name] for name in ("dollars", "onDemandDollars", "since")}
    else:
        hours = max(0.0, now - since) / 3600 if since is not None else 0.0
        spent = {
            "dollars": round(old.get("dollars", 0.0) + hours * old.get("dollarsPerHour", 0.0), 6),
            "onDemandDollars": round(
                old.get("onDemandDollars", 0.0) + hours * old.get("onDemandDollarsPerHour", 0.0), 6
            ),
            "since": precise_instant(now),
        }
    pools = dict(sorted({**kept, **rate.pools}.items())[:_MOST_NAMES])
    return rates | spent | {"unpricedNodes": rate.unpriced, "pools": pools}
