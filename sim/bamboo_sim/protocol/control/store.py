"""The simulated API server: the facts of the job as JSON, and the version of what it holds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from bamboo_core.arbiter_state.durable import Durable, from_json, to_json


class Store:
    """A write replaces only the version that it names. Values are never changed in place."""

    def __init__(self, durable: Durable) -> None:
        self.version = 1
        self.durable = durable
        # the same, as a reader gets it
        self.facts: Mapping[str, Any] = {} if durable == Durable() else to_json(durable)

    def replace(self, version: int, text: str) -> bool:
        """Write JSON; False if the version is not the present one."""
        if version != self.version:
            return False
        self.version += 1
        self.facts = json.loads(text)
        self.durable = from_json(dict(self.facts))
        return True
