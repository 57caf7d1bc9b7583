"""Files of markets: the named ones that come with the simulator, and those that a fit wrote."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from bamboo_sim.market.markets.parameters import Market, MarketError, Parameter
from bamboo_sim.market.traces.records import TraceError

FORMAT = "bamboo market"


def named() -> dict[str, Market]:
    """The markets that come with the simulator."""
    text = files("bamboo_sim.market.markets").joinpath("profiles.json").read_text(encoding="utf-8")
    read: dict[str, Any] = json.loads(text)
    return {name: _market(name, entries) for name, entries in read.items()}


def text(market: Market) -> str:
    """The content of a market's file."""
    parameters = {name: value._asdict() for name, value in market.parameters.items()}
    content = {"format": FORMAT, "name": market.name, "parameters": parameters}
    return json.dumps(content, indent=1) + "\n"


def read(path: Path) -> Market:
    """The market in a file. TraceError names the line that is no JSON, MarketError the field, its
    value and the remedy."""
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except json.JSONDecodeError as error:
        raise TraceError(path, error.lineno, f"{error.msg}; mend the JSON.") from None
    try:
        if content.get("format") != FORMAT:
            raise MarketError(f"format is {content.get('format')!r}; write {FORMAT!r}.")
        if not isinstance(content.get("name"), str) or not content["name"]:
            raise MarketError(f"name is {content.get('name')!r}; write a name.")
        return _market(content["name"], content.get("parameters"))
    except MarketError as error:
        raise MarketError(f"{path}: {error}") from None


def _market(name: str, entries: object) -> Market:
    if not isinstance(entries, dict):
        raise MarketError(f"parameters is {entries!r}; write an object.")
    found = {}
    for key, entry in entries.items():
        if not isinstance(entry, dict) or entry.keys() != {*Parameter._fields}:
            fields = ", ".join(Parameter._fields)
            raise MarketError(f"parameters.{key} is {entry!r}; write an object with {fields}.")
        found[key] = Parameter(**entry)
    return Market(name, found)
