"""What a run costs, where prices are known. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from bamboo_cli.errors import CommandError
from bamboo_cli.job.state import Manifest
from bamboo_cli.run.model import Run, amount_text, hours_text

PRICES_ANNOTATION = "bamboo.dev/prices"
"""On a BambooJob: prices as with --price, separated by commas."""

OTHERS = "others"


@dataclass(frozen=True)
class Cost:
    """The agents of a pool, or of a zone."""

    name: str
    hours: float  # of agents, added up
    price: float | None  # USD for an hour of an agent's node; None: not given

    @property
    def usd(self) -> float | None:
        return None if self.price is None else self.hours * self.price


def read_prices(given: Iterable[str], source: str = "--price") -> dict[str, float]:
    """``POOL=USD`` each -> pool or zone -> USD for an hour. CommandError names the one that is
    wrong."""
    found: dict[str, float] = {}
    for text in given:
        name, _, price = text.strip().partition("=")
        try:
            usd = float(price)
        except ValueError:
            usd = -1.0
        if not name or not 0 <= usd < 1e6:
            raise CommandError(
                f"{source} {text.strip()!r} is not POOL=USD; write the node pool, the zone or"
                f" {OTHERS}, and the price of an hour of one node, such as spot-a100=1.47."
            )
        found[name] = usd
    return found


def prices_of(manifest: Manifest, given: Iterable[str]) -> dict[str, float]:
    """Pool or zone -> USD for an hour, as the user gives it, else the job's annotation, else the
    operator. A price for all others replaces all of the operator.
    """
    cost = (manifest.get("status") or {}).get("cost") or {}
    known = {name: float(usd) for name, usd in (cost.get("pools") or {}).items()}
    noted = (manifest["metadata"].get("annotations") or {}).get(PRICES_ANNOTATION, "")
    there = read_prices(filter(None, noted.split(",")), f"annotation {PRICES_ANNOTATION}:")
    stated = {**there, **read_prices(given)}
    return stated if OTHERS in stated else {**known, **stated}


def with_prices(run: Run, given: Iterable[str], manifest: Manifest) -> Run:
    """The run without what the operator has computed with other prices, if the user gives some."""
    noted = (manifest["metadata"].get("annotations") or {}).get(PRICES_ANNOTATION, "")
    if not (tuple(given) or noted):
        return run
    left = run.job.left
    job = replace(run.job, left=None if left is None else replace(left, usd=None))
    return replace(run, account=None, job=job)


def unused(run: Run, given: Iterable[str], manifest: Manifest) -> str:
    """Which prices of the user belong to no pool or zone of the job; empty: all do."""
    cost = (manifest.get("status") or {}).get("cost") or {}
    known = {*run.zones, *(life.pool for life in run.lives), *(cost.get("pools") or {})} - {""}
    strange = sorted(read_prices(given).keys() - known - {OTHERS})
    if not strange:
        return ""
    return (
        f"--price {', '.join(strange)}: no agent of the job is known to have run there; known are"
        f" {', '.join(sorted(known)) or 'no pools and no zones'}."
    )


def has_amounts(run: Run) -> bool:
    """Whether pools and zones have amounts of money of their own, and not the operator's sum."""
    return run.account is None or run.account.spent is None


def costs(run: Run, prices: Mapping[str, float]) -> list[Cost]:
    """By pool, or by zone where the pool is not known."""
    if run.counts:
        return [
            Cost(zone, hours, _zone_price(run, zone, prices))
            for zone, hours in run.agent_hours().items()
            if hours
        ]
    hours: dict[str, tuple[float, float | None]] = {}
    for life in run.lives:
        name = life.pool or life.zone
        price = next((prices[x] for x in (life.pool, life.zone, OTHERS) if x in prices), None)
        name = life.zone if life.pool not in prices and life.zone in prices else name
        before, _ = hours.get(name, (0.0, None))
        hours[name] = (before + life.span.seconds / 3600, price)
    return [Cost(name, *hours[name]) for name in sorted(hours)]


def _zone_price(run: Run, zone: str, prices: Mapping[str, float]) -> float | None:
    """A Prometheus counts agents by zone. A pool's price is the zone's if all agents of the zone
    whose pool is known have it."""
    if zone in prices:
        return prices[zone]
    pools = {life.pool for life in run.lives if life.zone == zone and life.pool}
    found = {prices.get(pool, prices.get(OTHERS)) for pool in pools}
    return found.pop() if len(found) == 1 else None if found else prices.get(OTHERS)


def total(found: Iterable[Cost]) -> float | None:
    """USD; None if any price is missing."""
    amounts = [cost.usd for cost in found]
    known = [usd for usd in amounts if usd is not None]
    return sum(known) if known and len(known) == len(amounts) else None


def money_text(run: Run, prices: Mapping[str, float]) -> str:
    """One sentence. The operator's account is the only sum where there is one."""
    if run.account is not None and run.account.spent is not None:
        return _account_text(run, *run.account.spent)
    if not prices:
        return (
            "No prices given: --price POOL=USD gives the price of an hour of a node, and the"
            " chart's prices give those of all jobs."
        )
    found = costs(run, prices)
    sum_usd = total(found)
    if sum_usd is None:
        missing = ", ".join(cost.name for cost in found if cost.price is None) or "every pool"
        hint = (
            " A Prometheus counts agents by zone: give the prices of these zones, as in"
            " --price ZONE=USD."
            if run.counts
            else ""
        )
        return f"No price given for {missing}, so there is no total.{hint}"
    hours = hours_text(sum(cost.hours for cost in found))
    return (
        f"{amount_text(sum_usd)} USD for {hours} agent-hours{_each(sum_usd, run.new_samples)}. An"
        " agent counts while its pod runs; booting nodes and traffic between zones are not counted."
    )


def _account_text(run: Run, paid: float, on_demand: float) -> str:
    return (
        f"{amount_text(paid)} USD since prices were set{_each(paid, run.job.step * run.batch)}; on"
        f" demand {amount_text(on_demand)}. So the operator has counted, for each node while agents"
        " of the job were on it; the table has only what is shown of the run."
    )


def _each(usd: float, samples: int) -> str:
    return f", {usd / samples * 1e6:.2f} USD per million samples" if samples else ""
