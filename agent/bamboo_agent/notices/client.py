"""HTTP to the cloud's metadata server.

aiohttp is imported only when there is a server to ask, and in a thread: it takes about 0.4 s, and a
supervisor that is silent for so long would be suspected.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from bamboo_agent.addresses import split_address

if TYPE_CHECKING:
    import aiohttp

ADDRESS = "169.254.169.254:80"
"""The same on Compute Engine (where it is metadata.google.internal), EC2 and Azure."""

CONNECT_S = 2.0
ANSWER_S = 5.0
MOST_BYTES = 64 << 10


class NoAnswerError(Exception):
    """There is no answer, or one that means nothing. The text says what is wrong."""


class Reply(NamedTuple):
    """An HTTP response. Names of headers are in lower case."""

    status: int
    body: str
    headers: Mapping[str, str]

    def text(self) -> str:
        """The body. NoAnswerError unless the status is 200."""
        if self.status != 200:
            raise NoAnswerError(f"status {self.status}")
        return self.body


async def is_there(address: str) -> bool:
    """Whether anything accepts a connection at ``address`` (host:port)."""
    host, port = split_address(address)
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


class MetadataClient:
    """Requests to one metadata server. It uses no proxy and follows no redirect."""

    def __init__(self, address: str, http: aiohttp.ClientSession) -> None:
        self._address, self._http = address, http

    @classmethod
    async def open(cls, address: str) -> MetadataClient:
        """A client of the server at ``address`` (host:port). It connects with the first request."""
        await asyncio.to_thread(importlib.import_module, "aiohttp")
        import aiohttp

        http = aiohttp.ClientSession(
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent", "Content-Type"),
        )
        return cls(address, http)

    async def close(self) -> None:
        """Close all connections."""
        await self._http.close()

    async def ask(
        self, method: str, target: str, headers: Mapping[str, str], *, answer_s: float = ANSWER_S
    ) -> Reply:
        """One request; NoAnswerError if there is no response of at most 64 KiB in ``answer_s``."""
        import aiohttp

        limit = aiohttp.ClientTimeout(total=answer_s, sock_connect=CONNECT_S)
        url = f"http://{self._address}{target}"
        try:
            async with self._http.request(
                method, url, headers=dict(headers), timeout=limit, allow_redirects=False
            ) as response:
                body = bytearray()
                async for part in response.content.iter_any():
                    body += part
                    if len(body) > MOST_BYTES:
                        raise NoAnswerError(f"more than {MOST_BYTES} bytes")
                found = {name.lower(): value for name, value in response.headers.items()}
                return Reply(response.status, body.decode("utf-8", "replace"), found)
        except TimeoutError as error:
            raise NoAnswerError(f"no answer within {answer_s:g} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise NoAnswerError(f"{type(error).__name__}: {error}") from error
