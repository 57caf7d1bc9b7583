"""Notices from cloud metadata servers that the node will be preempted.

The supervisor also handles SIGTERM; a metadata server is faster, where there is one. Each source
announces one notice. A metadata server that does not answer is not an error: not every pod can
reach it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple
from urllib.parse import urlsplit

from bamboo_core.protocol.supervisor import Departing

log = logging.getLogger(__name__)

_MAX_REPLY = 64 << 10


class Reply(NamedTuple):
    """An HTTP response."""

    status: int
    body: str


async def request(method: str, url: str, *, headers: dict[str, str], timeout_s: float) -> Reply:
    """One HTTP/1.0 request. OSError or TimeoutError if there is no response."""
    parts = urlsplit(url)
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    lines = [f"{method} {target} HTTP/1.0", f"Host: {parts.netloc}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    async with asyncio.timeout(timeout_s):
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80)
        try:
            writer.write(("\r\n".join(lines) + "\r\n\r\n").encode("ascii"))
            return _parse(await reader.read(_MAX_REPLY))
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


def _parse(data: bytes) -> Reply:
    head, _, body = data.decode("utf-8", "replace").partition("\r\n\r\n")
    words = head.split(None, 2)
    if len(words) < 2 or not words[1].isdecimal():
        raise OSError(f"not an HTTP response: {head[:60]!r}")
    return Reply(int(words[1]), body)


class NoticeSource(ABC):
    """Polls for a notice."""

    pause_s: float = 2.0  # between requests

    @abstractmethod
    async def ask(self) -> Departing | None:
        """One request: the notice, or None. OSError or TimeoutError if there is no response."""

    async def watch(self, announce: Callable[[Departing], None]) -> None:
        """Poll, announce the first notice and return."""
        is_silent = False
        while True:
            try:
                notice = await self.ask()
                is_silent = False
            except (OSError, TimeoutError) as error:
                notice = None
                if not is_silent:
                    log.info("%s: no response: %s", type(self).__name__, error)
                is_silent = True
            if notice is not None:
                announce(notice)
                return
            await asyncio.sleep(self.pause_s)


class GoogleMetadata(NoticeSource):
    """Compute Engine: ``instance/preempted`` becomes TRUE about 30 s before the VM stops.

    The request waits at the server until the value changes, so a notice takes milliseconds.
    """

    def __init__(
        self, url: str = "http://metadata.google.internal", *, wait_s: int = 60, lead_s: float = 30
    ) -> None:
        self._url = f"{url}/computeMetadata/v1/instance/preempted"
        self._wait_s = wait_s
        self._lead_s = lead_s
        self.pause_s = 0.5
        self._is_first = True

    async def ask(self) -> Departing | None:
        """The current value first (it may be TRUE already), then each change."""
        wait = "" if self._is_first else f"?wait_for_change=true&timeout_sec={self._wait_s}"
        reply = await request(
            "GET",
            self._url + wait,
            headers={"Metadata-Flavor": "Google"},
            timeout_s=self._wait_s + 5,
        )
        self._is_first = reply.status != 200
        if reply.status == 200 and reply.body.strip() == "TRUE":
            return Departing(self._lead_s, "Compute Engine preempts the VM", is_signal=False)
        return None


class Ec2Metadata(NoticeSource):
    """EC2, IMDSv2: ``spot/instance-action`` appears 2 minutes before the instance stops."""

    def __init__(
        self,
        url: str = "http://169.254.169.254",
        *,
        now: Callable[[], float] = time.time,
        pause_s: float = 2.0,
    ) -> None:
        self._url = url
        self._now = now
        self._token = ""
        self.pause_s = pause_s

    async def ask(self) -> Departing | None:
        """The planned action and its time, if any. An expired token is renewed."""
        if not self._token:
            self._token = await self._new_token()
        reply = await request(
            "GET",
            f"{self._url}/latest/meta-data/spot/instance-action",
            headers={"X-aws-ec2-metadata-token": self._token},
            timeout_s=2.0,
        )
        if reply.status == 401:
            self._token = ""
        if reply.status != 200:
            return None
        return self._notice(reply.body)

    async def _new_token(self) -> str:
        reply = await request(
            "PUT",
            f"{self._url}/latest/api/token",
            headers={"X-aws-ec2-metadata-token-ttl-seconds": "21600", "Content-Length": "0"},
            timeout_s=2.0,
        )
        if reply.status != 200:
            raise OSError(f"the metadata server returns no token (status {reply.status})")
        return reply.body.strip()

    def _notice(self, body: str) -> Departing:
        """Any action ends the instance. An unreadable time counts as 0 seconds."""
        action, lead_s = "interrupt", 0.0
        try:
            plan = json.loads(body)
            action = str(plan["action"])
            at = datetime.strptime(plan["time"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
            lead_s = max(0.0, at.timestamp() - self._now())
        except (ValueError, KeyError, TypeError) as error:
            log.warning("cannot read the interruption notice %r: %s", body, error)
        return Departing(lead_s, f"EC2 will {action} the instance", is_signal=False)


SOURCES: dict[str, Callable[[], NoticeSource]] = {"gce": GoogleMetadata, "ec2": Ec2Metadata}
"""By their names in the configuration."""
