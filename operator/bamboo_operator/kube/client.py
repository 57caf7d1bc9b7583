"""The Kubernetes API through the official asyncio client. This is the only module that imports it.

Raw JSON in and out: the client's models cost half a millisecond for each pod on the event loop.
Fails fast (three tries, under two seconds); callers have a queue that tries again.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import orjson
from kubernetes.aio import client, config

from bamboo_core.api import texts
from bamboo_operator.kube.api import FEW, ApiError, Object, Page

_TRIES = 3
_PAUSE_S = 0.2
_TIMEOUT_S = 10.0
_PAGE = 500
_WATCH_S = 240
_MOST_SHOWN_BYTES = 500
# The client's library would write JSON for this type without the parameter, with two escapes for an
# emoji, which YAML refuses.
_APPLY = "application/apply-patch+yaml; charset=utf-8"
_TO_ESCAPE = re.compile("[\x7f-\uffff]")

Observer = Callable[[str, str, int, float], None]
"""Called after every request with verb, resource, code and seconds."""


async def connect() -> Kube:
    """In a pod with its service account, otherwise with KUBECONFIG."""
    configuration = client.Configuration()
    # Else each request asks two threads for ~/.netrc and for a proxy in the environment. The
    # watches (kopf) use neither.
    configuration.client_session_kwargs = {"trust_env": False}
    if os.environ.get("KUBERNETES_SERVICE_HOST") and not os.environ.get("KUBECONFIG"):
        config.load_incluster_config(client_configuration=configuration)
    else:
        await config.load_kube_config(
            config_file=os.environ.get("KUBECONFIG"), client_configuration=configuration
        )
    return Kube(client.ApiClient(configuration))


class Kube:
    """Implements :class:`bamboo_operator.kube.api.Api`."""

    def __init__(self, api_client: Any) -> None:
        self._client = api_client
        self._observe: Observer = lambda verb, resource, code, seconds: None

    def observe_with(self, observer: Observer) -> None:
        """Call the observer after every request from now on."""
        self._observe = observer

    async def close(self) -> None:
        await self._client.close()

    async def get(self, path: str) -> Object | None:
        try:
            return await self._request("GET", path)
        except ApiError as error:
            if error.is_absence:
                return None
            raise

    async def list(self, path: str, *, labels: str = "", fields: str = "") -> list[Object]:
        """Reads pages of 500, so that no answer is huge."""
        pages = self.pages(path, fields=fields, labels=labels)
        return [x async for page, _ in pages for x in page]

    def pages(self, path: str, *, fields: str = "", labels: str = "") -> AsyncIterator[Page]:
        """The objects that match the selectors, 500 on a page."""
        return self._pages(path, _selectors(fields, labels))

    async def each(self, path: str) -> AsyncIterator[Object]:
        """The objects of small pages. Each may be forgotten before the next one comes."""
        async for page, _ in self._pages(path, {}, FEW):
            page.reverse()
            while page:
                yield page.pop()

    async def _pages(
        self, path: str, query: dict[str, str], size: int = _PAGE
    ) -> AsyncIterator[Page]:
        query = query | {"limit": str(size)}
        while True:
            page = await self._request("GET", path, query=query)
            meta = page.get("metadata") or {}
            yield page.get("items") or [], str(meta.get("resourceVersion", ""))
            if not meta.get("continue"):
                return
            query["continue"] = meta["continue"]

    async def watch(
        self, path: str, *, since: str, fields: str = "", labels: str = ""
    ) -> AsyncIterator[Object]:
        """Events after the resource version ``since``, until the server ends the answer."""
        query = {
            "watch": "true",
            **_selectors(fields, labels),
            "resourceVersion": since,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(_WATCH_S),
        }
        limit = aiohttp.ClientTimeout(total=_WATCH_S + _TIMEOUT_S, sock_connect=_TIMEOUT_S)
        rest, began = b"", time.monotonic()
        try:
            response = await self._open("GET", path, query, None, "application/json", limit)
            self._observe("WATCH", _resource(path), response.status, time.monotonic() - began)
            try:
                if response.status != 200:
                    raise _error(response.status, bytes(await response.read()).decode())
                async for chunk in response.response.content.iter_any():
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        yield _parsed(line.decode())
            finally:
                response.response.close()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiError(0, "Unreachable", f"{type(error).__name__}: {error}") from error

    async def create(self, path: str, body: Object) -> Object:
        return await self._request("POST", path, query={"fieldValidation": "Strict"}, body=body)

    async def replace(self, path: str, body: Object) -> Object:
        return await self._request("PUT", path, body=body)

    async def apply(self, path: str, body: Object, *, manager: str) -> Object:
        query = {"fieldManager": manager, "force": "true"}
        data = as_yaml(body)
        return await self._request("PATCH", path, query=query, body=data, content_type=_APPLY)

    async def delete(self, path: str, *, uid: str = "", grace_s: int | None = None) -> bool:
        body: Object = {"kind": "DeleteOptions", "propagationPolicy": "Background"}
        if uid:
            body["preconditions"] = {"uid": uid}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        try:
            await self._request("DELETE", path, body=body)
        except ApiError as error:
            if error.is_absence or (uid and error.is_conflict):
                return False
            raise
        return True

    async def _request(
        self,
        verb: str,
        path: str,
        *,
        query: dict[str, str] | None = None,
        body: Object | bytes | None = None,
        content_type: str = "application/json",
    ) -> Object:
        for attempt in range(_TRIES):
            began = time.monotonic()
            code, text = await self._send(verb, path, query or {}, body, content_type)
            self._observe(verb, _resource(path), code, time.monotonic() - began)
            if 200 <= code < 300:
                return _parsed(text)
            # A POST whose answer was lost may have worked; only the caller can find out.
            again = code in (0, 429, 500, 502, 503, 504) and (verb != "POST" or code == 429)
            if not again or attempt == _TRIES - 1:
                raise _error(code, text)
            await asyncio.sleep(_PAUSE_S * 2**attempt)
        raise AssertionError("unreachable")

    async def _send(
        self,
        verb: str,
        path: str,
        query: dict[str, str],
        body: Object | bytes | None,
        content_type: str,
    ) -> tuple[int, str]:
        try:
            response = await self._open(verb, path, query, body, content_type, _TIMEOUT_S)
            data = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return 0, f"{type(error).__name__}: {error}"
        return response.status, bytes(data).decode()

    async def _open(
        self,
        verb: str,
        path: str,
        query: dict[str, str],
        body: Object | bytes | None,
        content_type: str,
        limit: float | aiohttp.ClientTimeout,
    ) -> Any:
        verb, url, headers, _, form = await self._client.param_serialize(
            verb,
            path,
            query_params=list(query.items()),
            header_params={"Content-Type": content_type, "Accept": "application/json"},
            auth_settings=["BearerToken"],
        )
        # Given to ``param_serialize``, the body would be looked through for models and copied.
        return await self._client.call_api(verb, url, headers, body, form, _request_timeout=limit)


def as_yaml(body: Object) -> bytes:
    """JSON that is YAML, too, whatever its texts are.

    YAML knows no pairs of surrogates, and takes some characters only as escapes, such as those of
    control. Half of a pair, which no text may have, becomes a replacement character.
    """
    return _TO_ESCAPE.sub(_escape, json.dumps(body, ensure_ascii=False)).encode()


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\u{0xFFFD if 0xD800 <= code <= 0xDFFF else code:04x}"


def _selectors(fields: str, labels: str) -> dict[str, str]:
    found = {"fieldSelector": fields, "labelSelector": labels}
    return {name: selector for name, selector in found.items() if selector}


def _resource(path: str) -> str:
    """``pods`` of /api/v1/namespaces/x/pods/y; ``apis`` of the path of a group."""
    words = path.strip("/").split("/")
    words = words[2:] if words[0] == "api" else words[3:] or words[:1]
    return words[2] if words[0] == "namespaces" and len(words) > 2 else words[0]


def _parsed(text: str) -> Object:
    """ApiError if it is not an object, so that something in between has answered."""
    try:
        parsed = _loaded(text)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise ApiError(0, "Unreachable", f"the answer is not the API server's: {_shown(text)}")
    return parsed


def _loaded(text: str) -> Any:
    """Lists of pods are megabytes, which orjson reads fastest. But it reads only 1024 levels, and
    one job with deep args must not make a list of jobs unreadable."""
    try:
        return orjson.loads(text)
    except ValueError:
        return json.loads(text)


def _error(code: int, text: str) -> ApiError:
    try:
        status = orjson.loads(text)
        return ApiError(code, str(status.get("reason", "")), str(status.get("message", text)))
    except (ValueError, AttributeError):
        return ApiError(code, "Unreachable" if code == 0 else "", _shown(text))


def _shown(text: str) -> str:
    return texts.cut(text, _MOST_SHOWN_BYTES)
