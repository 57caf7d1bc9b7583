"""The API server's audit log: what service accounts ask for, and what they are told.

Those of the control plane itself are left out, and so are nodes and administrators.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bamboo_devcluster.layout import Layout

_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "None", "userGroups": ["system:serviceaccounts:kube-system"]},
        {"level": "Metadata", "userGroups": ["system:serviceaccounts"]},
        {"level": "None"},
    ],
}


@dataclass(frozen=True)
class Request:
    """A request as the API server's authorization sees it. resource: with its subresource.

    A request for no resource, such as discovery, has a path instead of one.
    """

    user: str
    verb: str
    group: str = ""
    resource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""
    code: int = 0
    message: str = ""  # of an error


def flags(layout: Layout) -> list[str]:
    """Write the policy; return the API server's flags."""
    policy = layout.root / "audit-policy.json"
    policy.write_text(json.dumps(_POLICY))
    return [f"--audit-policy-file={policy}", f"--audit-log-path={layout.audit_log}"]


def requests(log: Path, user: str) -> Iterator[Request]:
    """All requests of a user so far. A watch counts from its first answer."""
    with log.open() as lines:
        for line in lines:
            if line.endswith("\n"):  # else it is being written
                event = json.loads(line)
                if event["user"]["username"] == user:
                    yield _request(event)


def _request(event: dict[str, object]) -> Request:
    found = event.get("objectRef") or {}
    status = event.get("responseStatus") or {}
    assert isinstance(found, dict)
    assert isinstance(status, dict)
    parts = [found.get("resource", ""), found.get("subresource", "")]
    return Request(
        user=event["user"]["username"],  # type: ignore[index]
        verb=str(event["verb"]),
        group=found.get("apiGroup", ""),
        resource="/".join(part for part in parts if part),
        namespace=found.get("namespace", ""),
        name=found.get("name", ""),
        path="" if found else str(event["requestURI"]),
        code=status.get("code", 0),
        message=status.get("message", ""),
    )
