"""The CA bundle, and our address, in every namespace where agents run."""

from __future__ import annotations

import time
from collections.abc import Callable

from bamboo_operator import api, manifests
from bamboo_operator.api import Api

AGAIN_S = 60.0
"""Somebody may have deleted it."""


class Trust:
    """Publishes the bundle, but not for every pod."""

    def __init__(
        self, kube: Api, bundle: str, address: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._kube, self._clock = kube, clock
        self._bundle, self._address = bundle, address
        self._published: dict[str, float] = {}

    async def publish(self, namespace: str) -> None:
        """See to it that the config map is there."""
        at = self._published.get(namespace)
        if at is not None and self._clock() - at < AGAIN_S:
            return
        path = api.config_map(namespace, manifests.CA_CONFIG_MAP)
        body = manifests.ca_config_map(namespace, self._bundle, self._address)
        await self._kube.apply(path, body, manager=api.MANAGER)
        self._published[namespace] = self._clock()
