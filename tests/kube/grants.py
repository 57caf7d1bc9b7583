"""What roles grant, and which of it the API server's audit log shows to be needed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from bamboo_devcluster.cluster import Cluster
from bamboo_devcluster.controlplane import audit
from bamboo_devcluster.controlplane.audit import Request

from .operators import Account, until

Object = dict[str, Any]


@dataclass(frozen=True)
class Grant:
    """One verb of one rule. namespace, name: empty is any. resource: with its subresource."""

    role: str
    namespace: str
    group: str
    resource: str
    verb: str
    name: str

    def allows(self, request: Request) -> bool:
        """As the API server decides it."""
        return (
            (self.group, self.resource, self.verb)
            == (request.group, request.resource, request.verb)
            and self.namespace in ("", request.namespace)
            and self.name in ("", request.name)
        )


def grants(rights: list[Object]) -> set[Grant]:
    """All rights that the bindings among these objects grant."""
    roles = {_key(body, body["metadata"]): body for body in rights if "rules" in body}
    found: set[Grant] = set()
    for binding in rights:
        if "roleRef" not in binding:
            continue
        namespace = binding["metadata"].get("namespace", "")
        reference = binding["roleRef"]
        where = {} if reference["kind"] == "ClusterRole" else {"namespace": namespace}
        role = roles[_key(reference, {"name": reference["name"], **where})]
        found.update(_of(role, namespace))
    return found


def _key(body: Object, meta: Object) -> tuple[str, str, str]:
    return body["kind"], meta.get("namespace", ""), meta["name"]


def _of(role: Object, namespace: str) -> Iterator[Grant]:
    for rule in role["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    for name in rule.get("resourceNames", [""]):
                        yield Grant(
                            role["metadata"]["name"], namespace, group, resource, verb, name
                        )


@dataclass(frozen=True)
class Audit:
    """Faults of the rights. idle: no request needs them, for none is made that they alone allow."""

    refused: list[Request] = field(default_factory=list)
    not_granted: list[Request] = field(default_factory=list)
    idle: set[Grant] = field(default_factory=set)


CLEAN = Audit()


def compare(granted: set[Grant], requests: Iterable[Request]) -> Audit:
    """Compare an account's rights with its requests.

    Requests without a resource are discovery, which Kubernetes grants to all accounts itself.
    """
    refused, not_granted, idle = [], [], set(granted)
    for request in requests:
        if is_refused(request):
            refused.append(request)
        for each in _checked(request):
            allowing = [grant for grant in granted if grant.allows(each)]
            if not allowing:
                not_granted.append(each)
            elif len(allowing) == 1:
                idle.discard(allowing[0])
    return Audit(refused, not_granted, idle)


def is_refused(request: Request) -> bool:
    """For want of rights. Quotas, pod security and the end of a namespace are no such refusals."""
    return request.code == 403 and f'User "{request.user}" cannot ' in request.message


def _checked(request: Request) -> Iterator[Request]:
    """All rights that the API server has checked: a server-side apply that makes the object is also
    a creation. No role can name what is created by a POST: it has no name in its path."""
    if not request.resource:
        return
    values = vars(request)
    if request.verb == "create":
        yield Request(**{**values, "name": ""})
        return
    yield request
    if request.verb == "patch" and request.code == 201:
        yield Request(**{**values, "verb": "create"})


async def audited(cluster: Cluster, found: Account) -> Audit:
    """All requests of an account of the chart. The log may be a moment behind."""
    seen: list[Audit] = []

    async def is_complete() -> bool:
        requests = audit.requests(cluster.audit_log, found.user)
        seen[:] = [compare(grants(found.rights), requests)]
        return not seen[0].idle

    with contextlib.suppress(TimeoutError):
        await until(is_complete, timeout_s=10)
    return seen[0]
