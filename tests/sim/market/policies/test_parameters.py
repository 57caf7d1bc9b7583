"""Parameters are data: each has a unit and a source, and every one is used."""

from __future__ import annotations

import pytest

from bamboo_sim.market.policies.base.job import Common, common, formula
from bamboo_sim.market.policies.base.parameters import GROUPS, parameters, values
from bamboo_sim.market.policies.rivals import bamboo, migrations, oobleck, recycle, torchft, varuna

RULES = {
    "varuna": varuna.Rules,
    "torchft": torchft.Rules,
    "dropping": torchft.Rules,
    "oobleck": oobleck.Rules,
    "recycle": recycle.Rules,
    "bamboo": bamboo.Rules,
    "parcae": migrations.Costs,
}


@pytest.mark.parametrize("group", GROUPS)
def test_every_parameter_has_a_unit_and_a_source(group: str) -> None:
    found = parameters(group)
    assert found
    assert [entry.name for entry in found if not entry.unit or not entry.source] == []


def test_every_parameter_of_a_rival_is_a_rule_of_it() -> None:
    found = {(entry.system, entry.name) for entry in parameters("rivals")}
    assert found == {(system, name) for system, rules in RULES.items() for name in rules._fields}


def test_common_parameters_are_those_of_the_job() -> None:
    assert set(values("base", "common")) | {"seats_seed"} == set(vars(common()))
    assert common(notice_ms=30_000) == Common(**{**vars(common()), "notice_ms": 30_000})
    assert formula(is_split=True).layers == 48


def test_a_second_table_has_what_a_publication_has() -> None:
    differ = {entry.system for entry in parameters("rivals") if entry.own != entry.value}
    assert differ == {"varuna", "torchft", "oobleck", "bamboo"}
    assert values("rivals", "varuna", own=True)["block_ms"] == 11_500
    assert values("rivals", "varuna")["block_ms"] is None


def test_a_system_that_is_not_there_is_named() -> None:
    with pytest.raises(KeyError, match=r"rivals/parameters\.json has no varunas"):
        values("rivals", "varunas")
