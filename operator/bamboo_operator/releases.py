"""Other releases of Bamboo in the cluster, which must not serve the same namespaces.

Every release holds a Lease of one name in its own namespace; an annotation says what it serves.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable

from bamboo_operator import api
from bamboo_operator.api import Api, ApiError, Object
from bamboo_operator.lease import Elector

log = logging.getLogger(__name__)

SERVES = "bamboo.dev/namespaces"
"""Annotation of the Lease: names separated by commas, or * for all namespaces."""

_PAUSE_S = 5.0
_LEASE_S = 15.0


def scope(namespaces: Iterable[str]) -> str:
    """The annotation's value. No namespaces are all of them."""
    return ",".join(sorted(namespaces)) or "*"


class Releases:
    """Compares this release with the others."""

    def __init__(
        self,
        kube: Api,
        *,
        namespace: str,
        name: str,
        namespaces: Iterable[str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube, self._namespace, self._name = kube, namespace, name
        self._serves = scope(namespaces)
        self._clock = clock
        self._seen: dict[str, tuple[object, float]] = {}

    async def acquire(
        self, elector: Elector, refused: Callable[[str], None], standby: Callable[[], None]
    ) -> int:
        """Wait until this process leads and no other release is in the way; its term.

        refused: called with the reason while one is, and with an empty text when none is. standby:
        called while another process of this release leads.
        """
        last = ""
        while True:
            text = await self._conflict(None)
            if not text:
                if last:
                    refused("")
                term = await elector.acquire(standby)
                text = await self._conflict(elector)
                if not text:
                    return term
                await elector.release()
            if text != last:
                log.error(text)
                refused(text)
            last = text
            await asyncio.sleep(_PAUSE_S)

    async def _conflict(self, elector: Elector | None) -> str:
        """Who is in the way; empty: nobody. elector: it holds our Lease, so later ones are not."""
        try:
            leases = await self._kube.list(api.leases(), fields=f"metadata.name={self._name}")
        except ApiError as error:
            return f"cannot list the Leases of other releases: {error}"
        for lease in leases:
            meta = lease["metadata"]
            if meta["namespace"] == self._namespace or not self._is_live(lease):
                continue
            theirs = (meta.get("annotations") or {}).get(SERVES, "*")
            if elector is not None and elector.order < order(lease):
                continue
            if both := _overlap(self._serves, theirs):
                return (
                    f"the release in namespace {meta['namespace']} serves {_words(both)} already;"
                    " uninstall one of the two, or give them different namespaces by the chart's"
                    " value `namespaces`"
                )
        return ""

    def _is_live(self, lease: Object) -> bool:
        """Whether its holder has renewed it lately, by our own clock."""
        meta, spec = lease["metadata"], lease.get("spec") or {}
        if not spec.get("holderIdentity"):
            return False
        mark = (meta.get("uid"), meta["resourceVersion"])
        if self._seen.get(meta["namespace"], (None, 0.0))[0] != mark:
            self._seen[meta["namespace"]] = (mark, self._clock())
        age_s = self._clock() - self._seen[meta["namespace"]][1]
        return age_s <= float(spec.get("leaseDurationSeconds") or _LEASE_S)


def order(lease: Object) -> tuple[str, str]:
    """Of two releases that begin at once, the lower one leads."""
    return (lease.get("spec") or {}).get("acquireTime") or "", lease["metadata"]["namespace"]


def _overlap(ours: str, theirs: str) -> str:
    if "*" in (ours, theirs):
        return theirs if ours == "*" else ours
    return ",".join(sorted(set(ours.split(",")) & set(theirs.split(","))))


def _words(served: str) -> str:
    return "all namespaces" if served == "*" else f"namespaces {served.replace(',', ', ')}"
