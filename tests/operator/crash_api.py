"""An API server in memory at which one call goes wrong."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from bamboo_operator.kube.api import ApiError, Object

from .memory_api import MemoryApi


class Crash(BaseException):
    """The operator's process has ended."""


class How(StrEnum):
    """The ways in which a call goes wrong."""

    CRASH_BEFORE = "the operator ends before the call"
    CRASH_AFTER = "the call is made, and the operator ends"
    CONFLICT = "409"
    FAILURE = "500"
    LOST = "the call is made, and the answer is lost"


@dataclass(frozen=True)
class Fault:
    """At the call with this number."""

    call: int
    how: How


class FaultyApi(MemoryApi):
    """Counts the calls of all operators; one of them goes wrong. ``injected``: how many have."""

    def __init__(self, fault: Fault | None) -> None:
        super().__init__()
        self.fault = fault
        self.injected = 0
        self.calls: list[tuple[str, str]] = []
        self.creating: Callable[[str, Object], None] = lambda path, body: None
        self.deleting: Callable[[str], None] = lambda path: None
        self.is_dead = False  # the operator whose calls these are has ended

    async def _call(self, verb: str, path: str, make: Awaitable[Any]) -> Any:
        if self.is_dead:
            make.close()  # type: ignore[attr-defined]
            raise Crash
        number = len(self.calls)
        self.calls.append((verb, path))
        how = self.fault.how if self.fault is not None and self.fault.call == number else None
        self.injected += how is not None
        if how in (How.CRASH_BEFORE, How.CONFLICT, How.FAILURE):
            make.close()  # type: ignore[attr-defined]
            if how is How.CRASH_BEFORE:
                self.is_dead = True
                raise Crash
            raise ApiError(*((409, "Conflict") if how is How.CONFLICT else (500, "")), "injected")
        result = await make
        if how is How.CRASH_AFTER:
            self.is_dead = True
            raise Crash
        if how is How.LOST:
            raise ApiError(0, "Unreachable", "injected")
        return result

    async def get(self, path: str) -> Object | None:
        found: Object | None = await self._call("get", path, super().get(path))
        return found

    async def list(self, path: str, *, labels: str = "", fields: str = "") -> list[Object]:
        made = super().list(path, labels=labels, fields=fields)
        found: list[Object] = await self._call("list", path, made)
        return found

    async def create(self, path: str, body: Object) -> Object:
        found: Object = await self._call("create", path, self._create(path, body))
        return found

    async def _create(self, path: str, body: Object) -> Object:
        self.creating(path, body)
        return await super().create(path, body)

    async def replace(self, path: str, body: Object) -> Object:
        found: Object = await self._call("replace", path, super().replace(path, body))
        return found

    async def apply(self, path: str, body: Object, *, manager: str) -> Object:
        found: Object = await self._call("apply", path, super().apply(path, body, manager=manager))
        return found

    async def delete(self, path: str, *, uid: str = "", grace_s: int | None = None) -> bool:
        found: bool = await self._call("delete", path, self._delete(path, uid, grace_s))
        return found

    async def _delete(self, path: str, uid: str, grace_s: int | None) -> bool:
        stored = self.objects.get(path)
        if stored is not None and uid in ("", stored["metadata"]["uid"]):
            self.deleting(path)
        return await super().delete(path, uid=uid, grace_s=grace_s)
