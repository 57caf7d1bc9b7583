"""What a run costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bamboo_cli.errors import CommandError
from bamboo_cli.job.state import read_job
from bamboo_cli.run.cost import Cost, costs, money_text, prices_of, read_prices, total, unused
from bamboo_cli.run.model import Life, Run, Span, hours_text

HOUR = Span(0.0, 3600.0)


@pytest.fixture
def priced(training: dict[str, Any]) -> Run:
    lives = [Life("x", "a", "spot", HOUR), Life("y", "a", "spot", HOUR), Life("z", "b", "", HOUR)]
    progress = [(0.0, 0), (3600.0, 1000)]
    return Run(read_job(training), 500, HOUR, lives, progress=progress)


def test_prices_are_for_a_pool_or_else_a_zone_or_else_all_others(priced: Run) -> None:
    assert costs(priced, {"spot": 1.5, "b": 2.0}) == [
        Cost("b", 1.0, 2.0), Cost("spot", 2.0, 1.5),
    ]  # fmt: skip
    assert total(costs(priced, {"a": 1.0, "others": 5.0})) == 7.0
    assert costs(priced, {}) == [Cost("b", 1.0, None), Cost("spot", 2.0, None)]


def test_a_price_of_a_pool_where_no_agent_ran(priced: Run, manifest: dict[str, Any]) -> None:
    assert unused(priced, ["spot=1", "a=1", "others=2"], manifest) == ""
    assert unused(priced, ["spto=1", "b=2"], manifest) == (
        "--price spto: no agent of the job is known to have run there; known are a, b, spot."
    )
    manifest["status"]["cost"] = {"pools": {"spto": 1.0}}
    assert unused(priced, ["spto=1"], manifest) == ""
    nothing = replace(priced, lives=())
    assert "known are no pools and no zones." in unused(nothing, ["x=1"], {})


def test_money_is_never_invented(priced: Run) -> None:
    assert money_text(priced, {}).startswith("No prices given: --price POOL=USD")
    assert money_text(priced, {"spot": 1.5}) == "No price given for b, so there is no total."
    text = money_text(priced, {"spot": 1.5, "b": 2.0})
    assert text.startswith("5.00 USD for 3.0000 agent-hours, 10.00 USD per million samples.")
    still = money_text(replace(priced, progress=[]), {"others": 1.0})
    assert still.startswith("3.00 USD for 3.0000")
    assert money_text(replace(priced, lives=[]), {"spot": 1.0}) == (
        "No price given for every pool, so there is no total."
    )


def test_agent_hours_have_one_format() -> None:
    """A job of 30 s has some. What is shorter than the last digit is not 0, either."""
    shown = [hours_text(seconds / 3600) for seconds in (0.1, 1, 30, 36, 3600, 3.6e6, 0)]
    assert shown == ["<0.0001", "0.0003", "0.0083", "0.0100", "1.0000", "1000.0000", "not known"]


@pytest.mark.parametrize("text", ["spot", "=3", "spot=", "spot=-1", "spot=nan", "spot=x", "a=1e9"])
def test_prices_that_cannot_be_read(text: str) -> None:
    with pytest.raises(CommandError, match="is not POOL=USD; write the node pool"):
        read_prices([text])


def test_the_annotation_gives_prices_and_the_option_goes_first(manifest: dict[str, Any]) -> None:
    assert prices_of(manifest, ["a=1"]) == {"a": 1.0}
    manifest["metadata"]["annotations"] = {"bamboo.dev/prices": "a=2, b=3"}
    assert prices_of(manifest, ["a=1"]) == {"a": 1.0, "b": 3.0}
    manifest["status"]["cost"] = {"pools": {"a": 9.0, "c": 5.0}}
    assert prices_of(manifest, ["b=4"]) == {"a": 2.0, "b": 4.0, "c": 5.0}
    assert prices_of(manifest, ["others=4"]) == {"a": 2.0, "b": 3.0, "others": 4.0}
    manifest["metadata"]["annotations"] = {}
    assert prices_of(manifest, []) == {"a": 9.0, "c": 5.0}
    manifest["metadata"]["annotations"] = {"bamboo.dev/prices": "a"}
    with pytest.raises(CommandError, match=r"annotation bamboo.dev/prices: 'a' is not POOL=USD"):
        prices_of(manifest, [])
