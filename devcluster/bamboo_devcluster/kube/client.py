"""A small asynchronous client of the Kubernetes API: plain requests, and a resuming watch."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp

Object = dict[str, Any]

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
_WATCH_TIMEOUT_S = 300
_RETRY_DELAY_S = 0.5
_REQUEST_TIMEOUT_S = 30.0


class ApiError(Exception):
    """The API server answered with an error."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(f"{code} {reason}: {message}")
        self.code = code
        self.reason = reason


class UnreachableError(Exception):
    """The API server did not answer."""


def is_not_found(error: ApiError) -> bool:
    """Return whether the object does not exist, or another one has taken its name."""
    return error.code in (404, 409)


class KubeApi:
    """One connection pool to one API server, authenticated by a client certificate."""

    def __init__(self, server: str, *, authority: Path, cert: Path, key: Path) -> None:
        context = ssl.create_default_context(cafile=str(authority))
        context.load_cert_chain(cert, key)
        connector = aiohttp.TCPConnector(ssl=context, limit=0)
        timeout = aiohttp.ClientTimeout(total=_REQUEST_TIMEOUT_S)
        self._session = aiohttp.ClientSession(server, connector=connector, timeout=timeout)

    @classmethod
    def from_directory(cls, directory: Path, server: str) -> "KubeApi":
        """Return the administrator's client of the cluster in a directory."""
        keys = directory / "pki"
        return cls(
            server, authority=keys / "ca.crt", cert=keys / "admin.crt", key=keys / "admin.key"
        )

    async def __aenter__(self) -> "KubeApi":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._session.close()

    async def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        params: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Object:
        """Send one request; raise ApiError or UnreachableError."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": content_type, "Accept": "application/json"}
        try:
            async with self._session.request(
                method, path, data=data, params=params, headers=headers
            ) as response:
                text = await response.text()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise UnreachableError(str(error)) from error
        if response.status >= 400:
            raise _error(response.status, text)
        if response.content_type != "application/json":
            return {"text": text}  # for example logs and /readyz
        parsed: Object = json.loads(text)
        return parsed

    async def get(self, path: str, **params: str) -> Object:
        """GET one object or list."""
        return await self.request("GET", path, params=params)

    async def post(self, path: str, body: Object) -> Object:
        """Create an object."""
        return await self.request("POST", path, body)

    async def patch(self, path: str, body: Object, content_type: str = MERGE_PATCH) -> Object:
        """Patch an object; with a merge patch by default."""
        return await self.request("PATCH", path, body, content_type=content_type)

    async def delete(self, path: str, body: Object | None = None) -> Object:
        """Delete an object."""
        return await self.request("DELETE", path, body)

    async def watch(self, path: str, **params: str) -> AsyncIterator[tuple[str, Any]]:
        """Yield ("SYNC", all objects), then (ADDED | MODIFIED | DELETED, object), forever.

        After a lost connection the watch resumes from the last resource version. If that has
        expired, it yields SYNC again.
        """
        version = ""
        while True:
            try:
                if not version:
                    listed = await self.get(path, **params)
                    version = listed["metadata"]["resourceVersion"]
                    yield "SYNC", listed.get("items") or []
                async for kind, item in self._watch_once(path, version, params):
                    version = item["metadata"]["resourceVersion"]
                    if kind != "BOOKMARK":
                        yield kind, item
            except ApiError:
                version = ""
                await asyncio.sleep(_RETRY_DELAY_S)
            except UnreachableError:
                await asyncio.sleep(_RETRY_DELAY_S)

    async def _watch_once(
        self, path: str, version: str, params: Mapping[str, str]
    ) -> AsyncIterator[tuple[str, Any]]:
        query = {
            **params,
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(_WATCH_TIMEOUT_S),
        }
        # A hung server must not block us; a live one ends the watch earlier.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=_WATCH_TIMEOUT_S + 30)
        try:
            async with self._session.get(path, params=query, timeout=timeout) as response:
                if response.status >= 400:
                    raise _error(response.status, await response.text())
                buffer = b""
                async for chunk in response.content.iter_any():
                    *lines, buffer = (buffer + chunk).split(b"\n")
                    for line in lines:
                        event = json.loads(line)
                        if event["type"] == "ERROR":
                            raise _error(event["object"].get("code", 500), line.decode())
                        yield event["type"], event["object"]
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise UnreachableError(str(error)) from error


def _error(code: int, text: str) -> ApiError:
    try:
        status = json.loads(text)
        status = status.get("object", status)
        return ApiError(code, status.get("reason", ""), status.get("message", text))
    except (ValueError, AttributeError):
        return ApiError(code, "", text[:300])
