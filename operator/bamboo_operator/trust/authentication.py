"""Authentication of agents: token review, then a look at the pod and the job behind it.

An agent can speak only for its own pod: the token is bound to the pod's UID, and the pod must be
one that an operator has made for its job, in the job's namespace. Fails closed.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from bamboo_core.controller.pod_zones import ZONE_LABEL
from bamboo_core.controller.view import JobView, parse_pod_name
from bamboo_operator.kube import api, object_views
from bamboo_operator.kube.api import Api, Object
from bamboo_operator.kube.owners import owner_of
from bamboo_operator.trust.identity import AUDIENCE
from bamboo_operator.trust.seals import Seals

_POD_NAME = "authentication.kubernetes.io/pod-name"
_POD_UID = "authentication.kubernetes.io/pod-uid"
_PREFIX = "system:serviceaccount:"
_MAX_TOKEN = 16 << 10

FindNode = Callable[[str], Awaitable[Object | None]]
"""A node by its name."""


class UnauthenticatedError(Exception):
    """The stream is refused. The agent logs the text."""


@dataclass(frozen=True)
class Peer:
    """An agent as the API server knows it, whatever the agent itself reports."""

    namespace: str
    pod: str
    pod_uid: str
    job: str
    job_uid: str
    node: str
    zone: str
    machine: str
    expires_at: float  # end of its token, in seconds since 1970

    def belongs_to(self, job: JobView) -> bool:
        """Whether it is an agent of this very job."""
        is_same = (self.namespace, self.job, self.job_uid) == (job.namespace, job.name, job.uid)
        return is_same and parse_pod_name(job.name, self.pod) is not None


async def authenticate(
    kube: Api, sealed: Seals, token: str, find_node: FindNode | None = None
) -> Peer:
    """Review the token and look the pod up. sealed: knows the pods that operators have made.

    find_node: may know the nodes; what it does not know is asked for.
    """
    if not token or len(token) > _MAX_TOKEN:
        raise UnauthenticatedError("no token was sent")
    if AUDIENCE not in _audiences(token):  # each review is a request
        raise UnauthenticatedError(f"the token is not meant for {AUDIENCE}")
    review = await kube.create(
        api.token_reviews(),
        {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [AUDIENCE]},
        },
    )
    namespace, name, uid = _bound_pod(review.get("status") or {})
    pod = await kube.get(api.pod(namespace, name))
    if pod is None or pod["metadata"]["uid"] != uid:
        raise UnauthenticatedError(f"pod {namespace}/{name} is gone")
    return await _peer(kube, sealed, pod, token, find_node)


def _bound_pod(status: Object) -> tuple[str, str, str]:
    if not status.get("authenticated"):
        raise UnauthenticatedError(f"the token is not valid: {status.get('error') or 'refused'}")
    if AUDIENCE not in (status.get("audiences") or []):
        raise UnauthenticatedError(f"the token is not meant for {AUDIENCE}")
    user = status.get("user") or {}
    username = str(user.get("username", ""))
    if not username.startswith(_PREFIX):
        raise UnauthenticatedError("the token does not belong to a service account")
    extra = user.get("extra") or {}
    name, uid = _only(extra.get(_POD_NAME)), _only(extra.get(_POD_UID))
    if not (name and uid):
        raise UnauthenticatedError("the token is not bound to a pod")
    return username.removeprefix(_PREFIX).split(":")[0], name, uid


def _only(values: list[str] | None) -> str:
    return values[0] if values and len(values) == 1 else ""


async def _peer(
    kube: Api, sealed: Seals, pod: Object, token: str, find_node: FindNode | None
) -> Peer:
    meta, spec = pod["metadata"], pod.get("spec") or {}
    owner = owner_of(pod)
    if owner is None:
        raise UnauthenticatedError(f"pod {meta['name']} belongs to no BambooJob")
    if not sealed.is_ours(pod):
        raise UnauthenticatedError(f"no operator has made pod {meta['name']} for its job")
    node = None
    if spec.get("nodeName"):
        node = await find_node(spec["nodeName"]) if find_node is not None else None
        node = node or await kube.get(f"{api.nodes()}/{spec['nodeName']}")
    labels = (node or {}).get("metadata", {}).get("labels") or {}
    return Peer(
        namespace=meta["namespace"],
        pod=meta["name"],
        pod_uid=meta["uid"],
        job=owner.job,
        job_uid=owner.uid,
        node=spec.get("nodeName", ""),
        zone=labels.get(ZONE_LABEL, ""),
        machine=object_views.machine(node) if node else "",
        expires_at=_expiry(token),
    )


def claimed_pod(token: str) -> str:
    """UID of the pod that a token names before anybody has looked at its signature, or nothing."""
    try:
        return str(_claims(token)["kubernetes.io"]["pod"]["uid"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return ""


def _audiences(token: str) -> list[str]:
    """Audiences that a token claims before anybody has looked at its signature."""
    try:
        found = _claims(token)["aud"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return []
    return found if isinstance(found, list) else [found]


def _expiry(token: str) -> float:
    """``exp`` of a reviewed token, whose signature is valid."""
    return float(_claims(token)["exp"])


def _claims(token: str) -> Any:
    payload = token.split(".")[1]
    return json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
