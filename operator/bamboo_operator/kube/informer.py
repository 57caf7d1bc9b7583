"""kopf as an informer, of all but pods. This is the only module that imports it.

Every event of a BambooJob, of an agent's pod or of a node becomes a key in the queue; truth comes
from a LIST later. kopf writes nothing: no finalizer, no annotation.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import kopf

from bamboo_operator.kube import api
from bamboo_operator.kube.api import JobKey
from bamboo_operator.kube.object_views import node_facts
from bamboo_operator.kube.owners import job_of

_CREDENTIALS_LIFE = timedelta(minutes=10)
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class _Endless:
    """Endless pauses between retries: a finite list would make an API outage fatal."""

    def __iter__(self) -> Iterator[float]:
        return itertools.chain((0.5, 1.0, 2.0, 5.0), itertools.repeat(10.0))


def registry(
    *,
    add: Callable[[JobKey], None],
    nodes_changed: Callable[[], None],
    seen: Callable[[str], None],
    created: Callable[[Any], None],
    queued: tuple[str, str] | None = None,
) -> kopf.OperatorRegistry:
    """Handlers that only report what may have changed.

    seen: called with an event's resource. created: called with every job that there is or that has
    changed. queued: group and plural of objects that jobs control; they are watched in the version
    that the cluster prefers.
    """
    handlers = kopf.OperatorRegistry()
    nodes = _Changes(node_facts)
    jobs = _Changes(_job_facts)

    @kopf.on.login(registry=handlers)  # type: ignore[untyped-decorator]
    def login(**kwargs: Any) -> Any:
        return _login(**kwargs)

    @kopf.on.event(api.GROUP, api.VERSION, api.PLURAL, registry=handlers)  # type: ignore[untyped-decorator]
    async def on_job(namespace: str | None, name: str | None, event: Any, **_: Any) -> None:
        seen("bamboojobs")
        if event["type"] != "DELETED":
            created(event["object"])
        if jobs.is_news(event):
            add((namespace or "", name or ""))

    @kopf.on.event("", "v1", "nodes", registry=handlers)  # type: ignore[untyped-decorator]
    async def on_node(event: Any, **_: Any) -> None:
        seen("nodes")
        if nodes.is_news(event):
            nodes_changed()

    if queued is not None:

        @kopf.on.event(*queued, registry=handlers)  # type: ignore[untyped-decorator]
        async def on_workload(event: Any, **_: Any) -> None:
            seen(queued[1])
            if (key := job_of(event["object"])) is not None:
                add(key)

    return handlers


class _Changes:
    """Which events say something new. facts: what matters of an object."""

    def __init__(self, facts: Callable[[Any], Any]) -> None:
        self._facts = facts
        self._known: dict[str, int] = {}  # UID -> hash of the facts

    def is_news(self, event: Any) -> bool:
        """Whether the object is new, gone, or differs in a fact."""
        body = event["object"]
        uid = body["metadata"]["uid"]
        if event["type"] == "DELETED":
            self._known.pop(uid, None)
            return True
        mark = hash(json.dumps(self._facts(body), sort_keys=True))
        if self._known.get(uid) == mark:
            return False
        self._known[uid] = mark
        return True


def _job_facts(job: Any) -> Any:
    """All but the status, of which each reconcile is the writer."""
    meta = job["metadata"]
    names = ("uid", "generation", "deletionTimestamp", "labels", "annotations")
    return [meta.get(name) for name in names]


def _login(**kwargs: Any) -> Any:
    """The pod's service account, whose token is read again every few minutes, or KUBECONFIG.

    kopf itself reads the service account only if the API server has a DNS name.
    """
    host, port = (
        os.environ.get("KUBERNETES_SERVICE_HOST"),
        os.environ.get("KUBERNETES_SERVICE_PORT"),
    )
    if not host or os.environ.get("KUBECONFIG"):
        return kopf.login_with_kubeconfig(**kwargs)
    host = f"[{host}]" if ":" in host else host
    return kopf.ConnectionInfo(
        server=f"https://{host}:{port or 443}",
        ca_path=str(_SERVICE_ACCOUNT / "ca.crt"),
        token=(_SERVICE_ACCOUNT / "token").read_text().strip(),
        expiration=datetime.now(UTC) + _CREDENTIALS_LIFE,
    )


class _NoDiffs(kopf.DiffBaseStorage):  # type: ignore[misc]
    """kopf compares each object with its last state, of which it makes five deep copies: half of
    the operator's time while pods are made. We have no handler for differences."""

    def build(self, **_: Any) -> Any:
        """The same for all objects."""
        return {}

    def fetch(self, **_: Any) -> Any:
        """Nothing is stored."""
        return None

    def store(self, **_: Any) -> None:
        """Store nothing."""


class _NoProgress(kopf.ProgressStorage):  # type: ignore[misc]
    """Our handlers only note keys, so nothing is ever to be continued."""

    def fetch(self, **_: Any) -> Any:
        """Nothing is stored."""
        return None

    def store(self, **_: Any) -> None:
        """Store nothing."""

    def purge(self, **_: Any) -> None:
        """Nothing is stored."""

    def touch(self, **_: Any) -> None:
        """Nothing is stored."""

    def clear(self, *, essence: Any) -> Any:
        """As it is, without a copy."""
        return essence


def settings() -> kopf.OperatorSettings:
    """See docs/adr for the reasons."""
    s = kopf.OperatorSettings()
    s.persistence.diffbase_storage = _NoDiffs()
    s.persistence.progress_storage = _NoProgress()
    s.peering.standalone = True
    s.posting.enabled = False
    s.scanning.disabled = True
    s.watching.chunk_size = api.FEW  # also of nodes: there is one setting for all
    s.watching.server_timeout = 240
    s.watching.client_timeout = 270
    s.watching.connect_timeout = 5
    s.networking.connect_timeout = 5
    s.networking.request_timeout = 30
    s.networking.error_backoffs = _Endless()
    s.queueing.idle_timeout = 2
    s.queueing.error_delays = (1, 2, 5, 10)
    s.process.ultimate_exiting_timeout = None
    return s


async def start(
    handlers: kopf.OperatorRegistry, namespaces: Sequence[str]
) -> Sequence[asyncio.Task[Any]]:
    """kopf's root tasks. The caller cancels them, and ends the process if one of them ends."""
    tasks: Sequence[asyncio.Task[Any]] = await kopf.spawn_tasks(
        registry=handlers,
        settings=settings(),
        standalone=True,
        namespaces=list(namespaces),
        clusterwide=not namespaces,
        identity="bamboo-operator",  # else kopf asks for the user's name, which a UID may not have
        # We handle signals. A flag that is never set keeps kopf from handling them at exit.
        stop_flag=asyncio.Event(),
    )
    return tasks
