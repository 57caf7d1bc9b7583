"""The port to the Kubernetes API: verbs over paths with plain dicts, its errors, its paths.

Implemented by :mod:`bamboo_operator.kube.client` and, for tests, in memory.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol

Object = dict[str, Any]
"""A Kubernetes object as parsed JSON."""

Page = tuple[list[Object], str]
"""A part of a list, and the resource version of the list."""

GROUP = "bamboo.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
PLURAL = "bamboojobs"

JobKey = tuple[str, str]
"""Namespace and name of a BambooJob."""

FEW = 10
"""Jobs in a page. The API server takes them up to 1.5 MB each, which may be 30 MB in memory."""

MANAGER = "bamboo-operator"
"""Field manager of pods and config maps."""
STATUS_MANAGER = "bamboo-operator-status"
ARBITER_MANAGER = "bamboo-operator-arbiter"


class ApiError(Exception):
    """The API server refused a request, or could not be reached (code 0)."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(f"{code} {reason}: {message}")
        self.code = code
        self.reason = reason
        self.message = message

    @property
    def is_conflict(self) -> bool:
        """The object exists already, or has changed since it was read."""
        return self.code == 409

    @property
    def is_absence(self) -> bool:
        """The object or its namespace does not exist."""
        return self.code == 404

    @property
    def is_refusal(self) -> bool:
        """The request itself is wrong; a retry cannot help."""
        return self.code in (400, 403, 404, 405, 413, 422)


class Api(Protocol):
    """Requests to the API server. All may raise ApiError."""

    async def get(self, path: str) -> Object | None:
        """The object; None if it does not exist."""

    async def list(self, path: str, *, labels: str = "", fields: str = "") -> list[Object]:
        """All objects of a collection that carry the labels and have the fields."""

    def each(self, path: str) -> AsyncIterator[Object]:
        """All objects of a collection, a few at a time: for those that users can make large."""

    def pages(self, path: str, *, fields: str = "", labels: str = "") -> AsyncIterator[Page]:
        """The objects that match the selectors."""

    def watch(
        self, path: str, *, since: str, fields: str = "", labels: str = ""
    ) -> AsyncIterator[Object]:
        """Events after a resource version, until the server ends the answer."""

    async def create(self, path: str, body: Object) -> Object:
        """POST to a collection. An unknown field is a refusal: users write podTemplate."""

    async def replace(self, path: str, body: Object) -> Object:
        """PUT. A conflict if its resourceVersion is not the newest."""

    async def apply(self, path: str, body: Object, *, manager: str) -> Object:
        """Server-side apply with force: fields of other managers are taken over."""

    async def delete(self, path: str, *, uid: str = "", grace_s: int | None = None) -> bool:
        """Delete with background propagation. False: no such object, or it has another UID."""


def jobs(namespace: str = "") -> str:
    """Collection of BambooJobs; of all namespaces if none is given."""
    within = f"/namespaces/{namespace}" if namespace else ""
    return f"/apis/{API_VERSION}{within}/{PLURAL}"


def job(namespace: str, name: str) -> str:
    return f"{jobs(namespace)}/{name}"


def job_status(namespace: str, name: str) -> str:
    return f"{job(namespace, name)}/status"


def pods(namespace: str = "") -> str:
    """Collection of pods; of all namespaces if none is given."""
    return f"/api/v1/namespaces/{namespace}/pods" if namespace else "/api/v1/pods"


def pod(namespace: str, name: str) -> str:
    return f"{pods(namespace)}/{name}"


def nodes() -> str:
    return "/api/v1/nodes"


def priority_classes() -> str:
    return "/apis/scheduling.k8s.io/v1/priorityclasses"


def secret(namespace: str, name: str = "") -> str:
    """One secret, or the collection."""
    return f"/api/v1/namespaces/{namespace}/secrets" + (f"/{name}" if name else "")


def config_map(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps/{name}"


def disruption_budgets(namespace: str = "") -> str:
    """Collection of PodDisruptionBudgets; of all namespaces if none is given."""
    within = f"/namespaces/{namespace}" if namespace else ""
    return f"/apis/policy/v1{within}/poddisruptionbudgets"


def disruption_budget(namespace: str, name: str) -> str:
    return f"{disruption_budgets(namespace)}/{name}"


def events(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/events"


def lease(namespace: str, name: str = "") -> str:
    """One lease, or the collection."""
    base = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
    return base + (f"/{name}" if name else "")


def leases() -> str:
    """Those of all namespaces."""
    return "/apis/coordination.k8s.io/v1/leases"


def access_reviews() -> str:
    """For questions about what somebody may do."""
    return "/apis/authorization.k8s.io/v1/subjectaccessreviews"


def token_reviews() -> str:
    return "/apis/authentication.k8s.io/v1/tokenreviews"
