"""How often agents are lost: what is believed after which record."""

from __future__ import annotations

import pytest

from bamboo_core.protection.hazard import PRIOR, Hazard, ZoneRecord

HOUR = 3600.0


def test_without_a_record_the_prior_holds() -> None:
    assert Hazard().per_agent_hour({}) == pytest.approx(PRIOR)
    assert Hazard().per_agent_hour({"a": 3, "b": 1}) == pytest.approx(PRIOR)


def test_quiet_hours_lower_it_and_losses_raise_it() -> None:
    quiet = Hazard().exposed({"a": 20}, HOUR)
    assert quiet.per_agent_hour({"a": 20}) < PRIOR
    assert quiet.lost("a").per_agent_hour({"a": 20}) > quiet.per_agent_hour({"a": 20})


def test_a_long_record_outweighs_the_prior() -> None:
    known = Hazard((ZoneRecord("a", 1000.0, 2000 * HOUR),))
    assert known.per_agent_hour({"a": 4}) == pytest.approx(0.5, rel=0.01)


@pytest.mark.parametrize(
    ("losses", "hours", "is_measured"),
    [(0.0, 0.0, False), (0.0, 19.0, False), (0.0, 20.0, True), (0.4, 5.0, False), (0.9, 0.1, True)],
)
def test_a_record_that_says_little_is_no_measure(
    losses: float, hours: float, is_measured: bool
) -> None:
    assert Hazard((ZoneRecord("a", losses, hours * HOUR),)).is_measured == is_measured


def test_a_bad_zone_counts_as_far_as_agents_are_there() -> None:
    known = Hazard((ZoneRecord("bad", 100.0, 100 * HOUR), ZoneRecord("good", 0.0, 100 * HOUR)))
    only_bad, both, only_good = (
        known.per_agent_hour(zones) for zones in ({"bad": 4}, {"bad": 2, "good": 2}, {"good": 4})
    )
    assert only_bad > 4 * only_good
    assert both == pytest.approx((only_bad + only_good) / 2)


def test_without_agents_the_record_of_the_job_holds() -> None:
    known = Hazard((ZoneRecord("a", 3.0, 20 * HOUR),))
    assert known.per_agent_hour({}) == pytest.approx(4 / 40)  # with the prior's loss in 20 hours


def test_old_counts_fade() -> None:
    known = Hazard().exposed({"a": 1}, HOUR).lost("a")
    later = known.exposed({}, 24 * HOUR)
    assert later.losses == pytest.approx(0.5)
    assert later.agent_hours == pytest.approx(0.5, rel=0.02)


def test_time_does_not_run_back() -> None:
    known = Hazard().exposed({"a": 2}, HOUR)
    assert known.exposed({"a": 2}, -5.0) == known


def test_a_loss_in_a_zone_never_seen_counts() -> None:
    assert Hazard().lost("").losses == 1


def test_only_the_zones_with_most_losses_are_remembered() -> None:
    known = Hazard(tuple(ZoneRecord(f"z{i:03}", float(i), 1.0) for i in range(100)))
    kept = known.lost("z099")
    assert len(kept.zones) == 64
    assert kept.zones == tuple(sorted(kept.zones, key=lambda z: z.zone))
    assert kept.zones[-1] == ZoneRecord("z099", 100.0, 1.0)
    assert "z000" not in {z.zone for z in kept.zones}


def test_rounding_is_stable() -> None:
    known = Hazard((ZoneRecord("a", 1 / 3, 10.4),)).rounded()
    assert known.zones == (ZoneRecord("a", 0.333, 10.0),)
    assert known.rounded() == known
