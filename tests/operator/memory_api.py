"""The port to the API server, in memory: enough of its semantics for the operator's own logic.

What only a real API server can show (CEL, RBAC, field ownership) is tested in tests/kube.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any

from bamboo_operator.kube.api import ApiError, Object


class MemoryApi:
    """Objects by path. ``fail``: called before every request; may raise ApiError."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.requests: list[tuple[str, str]] = []
        self.applied: list[tuple[str, Object, str]] = []
        self.reviews: dict[str, Object] = {}
        self.granted: set[tuple[str, str]] = set()  # users, and namespaces where they may all
        self.reviewers: set[str] = set()  # users that may review tokens, which has no namespace
        self.asked: list[Object] = []  # specs of access reviews
        self.fail: Callable[[str, str], None] = lambda verb, path: None
        self._numbers = itertools.count(1)

    def put(self, path: str, body: Object) -> Object:
        """Store an object as another client would."""
        stored = copy.deepcopy(body)
        meta = stored.setdefault("metadata", {})
        meta.setdefault("name", path.rsplit("/", 1)[1])
        meta.setdefault("uid", f"uid-{meta['name']}")
        meta["resourceVersion"] = str(next(self._numbers))
        self.objects[path] = stored
        return copy.deepcopy(stored)

    def _begin(self, verb: str, path: str) -> None:
        self.requests.append((verb, path))
        self.fail(verb, path)

    async def get(self, path: str) -> Object | None:
        self._begin("get", path)
        return copy.deepcopy(self.objects.get(path))

    async def list(self, path: str, *, labels: str = "", fields: str = "") -> list[Object]:
        self._begin("list", path)
        if fields:  # metadata.name=NAME in all namespaces
            kind, name = path.rsplit("/", 1)[1], fields.removeprefix("metadata.name=")
            found = [o for where, o in self.objects.items() if where.endswith(f"/{kind}/{name}")]
            return copy.deepcopy(found)
        wanted = dict(pair.split("=") for pair in labels.split(",") if pair)
        found = [
            body
            for where, body in sorted(self.objects.items())
            if where.startswith(path + "/") and "/" not in where[len(path) + 1 :]
        ]
        return [
            copy.deepcopy(body)
            for body in found
            if wanted.items() <= (body["metadata"].get("labels") or {}).items()
        ]

    async def each(self, path: str) -> AsyncIterator[Object]:
        for body in await self.list(path):
            yield body

    async def create(self, path: str, body: Object) -> Object:
        self._begin("create", path)
        if path.endswith("tokenreviews"):
            token = body["spec"]["token"]
            return {"status": self.reviews.get(token, {"authenticated": False})}
        if path.endswith("subjectaccessreviews"):
            self.asked.append(body["spec"])
            user, what = body["spec"]["user"], body["spec"]["resourceAttributes"]
            if what["resource"] == "tokenreviews":
                return {"status": {"allowed": user in self.reviewers}}
            return {"status": {"allowed": (user, what.get("namespace", "")) in self.granted}}
        where = f"{path}/{body['metadata']['name']}"
        if where in self.objects:
            raise ApiError(409, "AlreadyExists", where)
        return self.put(where, body)

    async def replace(self, path: str, body: Object) -> Object:
        self._begin("replace", path)
        where = path.removesuffix("/status")
        stored = self.objects.get(where)
        if stored is None:
            raise ApiError(404, "NotFound", path)
        self._check_version(stored, body)
        return self.put(where, body if where == path else stored | {"status": body["status"]})

    async def apply(self, path: str, body: Object, *, manager: str) -> Object:
        self._begin("apply", path)
        self.applied.append((path, copy.deepcopy(body), manager))
        if not path.endswith("/status"):
            return self.put(path, body)
        where = path.removesuffix("/status")
        stored = self.objects.get(where)
        if stored is None:
            raise ApiError(404, "NotFound", where)
        self._check_version(stored, body)
        status: dict[str, Any] = dict(stored.get("status") or {})
        mine = {"arbiter"} if "arbiter" in body["status"] else status.keys() - {"arbiter"}
        kept = {k: v for k, v in status.items() if k not in mine}
        return self.put(where, stored | {"status": kept | copy.deepcopy(body["status"])})

    async def delete(self, path: str, *, uid: str = "", grace_s: int | None = None) -> bool:
        self._begin("delete", path)
        stored = self.objects.get(path)
        if stored is None or (uid and stored["metadata"]["uid"] != uid):
            return False
        del self.objects[path]
        return True

    @staticmethod
    def _check_version(stored: Object, body: Object) -> None:
        wanted = body["metadata"].get("resourceVersion")
        if wanted is not None and wanted != stored["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", "the object has changed")
