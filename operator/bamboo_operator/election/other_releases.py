"""Other releases of Bamboo in the cluster, which must not serve the same namespaces.

Every release holds a Lease of one name in its own namespace; annotations say what it serves, and by
which service account. Anybody may write such a Lease in a namespace of their own, and may give an
account all rights there. So it counts only if that account, in the Lease's namespace, may review
tokens, a right without a namespace, and write the status of jobs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable

from bamboo_operator.election.lease import Elector
from bamboo_operator.kube import api
from bamboo_operator.kube.api import Api, ApiError, Object

log = logging.getLogger(__name__)

SERVES = "bamboo.dev/namespaces"
"""Annotation of the Lease: names separated by commas, or * for all namespaces."""

ACCOUNT = "bamboo.dev/service-account"
"""Annotation of the Lease: the name of the operator's service account, in the same namespace."""

_MOST_ASKED = 8
"""Namespaces about which the API server is asked for one Lease. A release has its rights in all."""
_REVIEW_TOKENS = {
    "verb": "create",
    "group": "authentication.k8s.io",
    "resource": "tokenreviews",
}
_SERVE_JOBS = {
    "verb": "patch",
    "group": api.GROUP,
    "resource": api.PLURAL,
    "subresource": "status",
}
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
        """Why this release must not lead; empty: it may. elector: it holds our Lease, so later
        releases are not in the way."""
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
            both = _overlap(self._serves, theirs)
            if not both:
                continue
            try:
                is_release = await self._may_serve(meta, both)
            except ApiError as error:
                place = meta["namespace"]
                return f"cannot find out whether namespace {place} has a release: {error}"
            if is_release:
                return (
                    f"the release in namespace {meta['namespace']} serves {_words(both)} already;"
                    " uninstall one of the two, or give them different namespaces by the chart's"
                    " value `namespaces`"
                )
            text = "the Lease in namespace %s is not a release's: its account may not serve jobs"
            log.warning(text, meta["namespace"])
        return ""

    async def _may_serve(self, meta: Object, served: str) -> bool:
        """Whether the Lease's account may do what every release does, in one of these namespaces:
        review tokens, and write the status of jobs."""
        account = str((meta.get("annotations") or {}).get(ACCOUNT) or "")
        if not account or not await self._may(meta["namespace"], account, _REVIEW_TOKENS):
            return False
        for place in served.split(",")[:_MOST_ASKED]:
            where = {"namespace": "" if place == "*" else place}
            if await self._may(meta["namespace"], account, _SERVE_JOBS | where):
                return True
        return False

    async def _may(self, home: str, account: str, what: dict[str, str]) -> bool:
        answer = await self._kube.create(api.access_reviews(), _review(home, account, what))
        return (answer.get("status") or {}).get("allowed") is True

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


def _review(home: str, account: str, what: dict[str, str]) -> Object:
    """The question whether an account of the namespace ``home`` may do something."""
    groups = ("serviceaccounts", f"serviceaccounts:{home}", "authenticated")
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": f"system:serviceaccount:{home}:{account}",
            "groups": [f"system:{group}" for group in groups],
            "resourceAttributes": what,
        },
    }


def order(lease: Object) -> tuple[str, str]:
    """The order of releases that begin at once: the lower one leads."""
    return (lease.get("spec") or {}).get("acquireTime") or "", lease["metadata"]["namespace"]


def _overlap(ours: str, theirs: str) -> str:
    if "*" in (ours, theirs):
        return theirs if ours == "*" else ours
    return ",".join(sorted(set(ours.split(",")) & set(theirs.split(","))))


def _words(served: str) -> str:
    return "all namespaces" if served == "*" else f"namespaces {served.replace(',', ', ')}"
