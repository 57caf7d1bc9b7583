"""What the metadata servers of Compute Engine, EC2 and Azure say about the end of this machine.

Each source is one question. What it finds is news the first time; its key tells whether it is the
same as before. Addresses, headers, fields and times are those of the clouds' public documentation.

Clouds say when the machine goes away, not how long it has left. The machine's own clock may be
wrong, so the answer's Date counts, and there is never more time than the cloud gives.
"""

from __future__ import annotations

import json
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from bamboo_agent.notices.client import MetadataClient, NoAnswerError, Reply
from bamboo_core.api.spec import NoticeSource

Clock = Callable[[], float]
"""Seconds since 1970, for answers without a Date."""


@dataclass(frozen=True)
class News:
    """The machine goes away in ``lead_s`` seconds (0: at once, or unknown); by a hint it may."""

    key: str
    lead_s: float
    reason: str
    is_hint: bool = False


class Source(ABC):
    """One question to the metadata server. pause_s: seconds between two of them."""

    pause_s: float

    @abstractmethod
    async def ask(self) -> list[News]:
        """All that is known now. NoAnswerError if the server does not say."""


# ---------------------------------------------------------------- Compute Engine

GCE_HEADERS = {"Metadata-Flavor": "Google"}
_ETAG = re.compile(r"[0-9A-Za-z]{1,64}")
_PREEMPTED = {"TRUE": News("preempted", 30.0, "Compute Engine preempts the VM")}
_MAINTENANCE = {
    "TERMINATE_ON_HOST_MAINTENANCE": News(
        "maintenance", 60.0, "Compute Engine stops the VM for maintenance of its host"
    )
}


class GceValue(Source):
    """A value of the VM. The request waits at the server until it changes, so there is no delay."""

    pause_s = 0.5

    def __init__(
        self, client: MetadataClient, path: str, news: Mapping[str, News], wait_s: int = 60
    ) -> None:
        self._client, self._news, self._wait_s = client, news, wait_s
        self._path = f"/computeMetadata/v1/instance/{path}"
        self._etag: str | None = None

    async def ask(self) -> list[News]:
        """The value first, which may have changed already; later each change."""
        query = ""
        if self._etag is not None:
            last = f"&last_etag={self._etag}" if self._etag else ""
            query = f"?wait_for_change=true{last}&timeout_sec={self._wait_s}"
        self._etag = None
        reply = await self._client.ask(
            "GET", self._path + query, GCE_HEADERS, answer_s=self._wait_s + 5
        )
        value = reply.text().strip()
        etag = reply.headers.get("etag", "")
        self._etag = etag if _ETAG.fullmatch(etag) else ""
        return [self._news[value]] if value in self._news else []


# ---------------------------------------------------------------- EC2

_AWS = "/latest/meta-data"
TOKEN_TARGET = "/latest/api/token"
TOKEN_HEADERS = {"X-aws-ec2-metadata-token-ttl-seconds": "21600"}
_TOKEN = re.compile(r"[!-~]{1,1024}")
_ACTIONS = {"terminate": 120.0, "stop": 120.0, "hibernate": 0.0}
"""The time that EC2 gives before each."""


def aws_token(reply: Reply) -> str:
    """The session token of IMDSv2. NoAnswerError if there is none."""
    token = reply.text().strip()
    if not _TOKEN.fullmatch(token):
        raise NoAnswerError("no session token")
    return token


class Ec2Session:
    """Requests with a session token, which is asked for again when it has expired."""

    def __init__(self, client: MetadataClient) -> None:
        self._client = client
        self._token = ""

    async def get(self, path: str) -> Reply:
        """The answer to a GET below ``/latest/meta-data``."""
        reply = await self._try(path)
        if reply.status == 401:
            self._token = ""
            reply = await self._try(path)
        return reply

    async def _try(self, path: str) -> Reply:
        if not self._token:
            self._token = aws_token(await self._client.ask("PUT", TOKEN_TARGET, TOKEN_HEADERS))
        headers = {"X-aws-ec2-metadata-token": self._token}
        return await self._client.ask("GET", f"{_AWS}/{path}", headers)


class Ec2Document(Source):
    """A JSON document that does not exist (404) until there is news."""

    pause_s = 2.0
    path: str

    def __init__(self, session: Ec2Session, clock: Clock = time.time) -> None:
        self._session, self._clock = session, clock

    async def ask(self) -> list[News]:
        reply = await self._session.get(self.path)
        if reply.status == 404:
            return []
        return [self._read(_object(reply.text()), _asked_at(reply, self._clock))]

    @abstractmethod
    def _read(self, document: dict[str, Any], now: float) -> News:
        """NoAnswerError if it is not such a document. now: when the server answered."""


class Ec2SpotAction(Ec2Document):
    """The interruption of a spot instance. A hibernation begins at once, others at ``time``."""

    path = "spot/instance-action"

    def _read(self, document: dict[str, Any], now: float) -> News:
        action = document.get("action")
        if not isinstance(action, str) or action not in _ACTIONS:
            raise NoAnswerError(f"the action {action!r} is not known")
        at = _rfc3339(document.get("time"))
        lead_s = _lead_s(at, now, most=_ACTIONS[action])
        return News(f"{action} {at}", lead_s, f"EC2 will {action} the instance")


class Ec2Rebalance(Ec2Document):
    """EC2 expects that the instance may be interrupted sooner than others."""

    path = "events/recommendations/rebalance"

    def _read(self, document: dict[str, Any], now: float) -> News:
        del now
        if (at := _rfc3339(document.get("noticeTime"))) is None:
            raise NoAnswerError("the recommendation has no time")
        return News(f"rebalance {at}", 0.0, "EC2 recommends to rebalance", is_hint=True)


# ---------------------------------------------------------------- Azure

AZURE_HEADERS = {"Metadata": "true"}
_AZURE_NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
_AZURE_EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
_AZURE_ENDS = {"Preempt": 30.0, "Terminate": 900.0, "Reboot": 900.0, "Redeploy": 600.0}
"""The time that Azure gives before each."""
_NAME = re.compile(r"[^\s<>]{1,260}")


class AzureScheduledEvents(Source):
    """Events of this VM. The document has those of other VMs, too, so the VM's name is needed.

    No event is acknowledged: that would let it begin before its time.
    """

    pause_s = 1.0

    def __init__(self, client: MetadataClient, clock: Clock = time.time) -> None:
        self._client, self._clock = client, clock
        self._name = ""
        self._incarnation: object = None  # of the newest document that was read

    async def ask(self) -> list[News]:
        if not self._name:
            reply = await self._client.ask("GET", _AZURE_NAME, AZURE_HEADERS)
            name = reply.text().strip()
            if not _NAME.fullmatch(name):
                raise NoAnswerError("the VM has no name")
            self._name = name.lower()
        reply = await self._client.ask("GET", _AZURE_EVENTS, AZURE_HEADERS)
        document = _object(reply.text())
        incarnation, events = document.get("DocumentIncarnation"), document.get("Events")
        if not isinstance(incarnation, int) or not isinstance(events, list):
            raise NoAnswerError("not a document of scheduled events")
        if incarnation == self._incarnation:
            return []
        self._incarnation, now = incarnation, _asked_at(reply, self._clock)
        return [news for event in events if (news := self._read(event, now)) is not None]

    def _read(self, event: object, now: float) -> News | None:
        """None if the event is another VM's, or does not end the VM."""
        if not isinstance(event, dict):
            return None
        kind = event.get("EventType")
        if not isinstance(kind, str) or kind not in _AZURE_ENDS:
            return None
        names = event.get("Resources")
        if not isinstance(names, list) or self._name not in [str(n).lower() for n in names]:
            return None
        lead_s = _lead_s(rfc1123(event.get("NotBefore")), now, most=_AZURE_ENDS[kind])
        # An event that begins, or is put to another time, is news again.
        parts = [event.get(key) for key in ("EventId", "EventStatus", "NotBefore")]
        key = " ".join(map(str, (kind, *parts)))
        return News(key, lead_s, f"Azure announces {kind} of the VM")


# ---------------------------------------------------------------- all


def make(name: NoticeSource, client: MetadataClient) -> list[Source]:
    """The questions of a source. Auto and None have none."""
    match name:
        case NoticeSource.GCE:
            return [
                GceValue(client, "preempted", _PREEMPTED),
                GceValue(client, "maintenance-event", _MAINTENANCE),
            ]
        case NoticeSource.AWS_SPOT:
            return [Ec2SpotAction(Ec2Session(client))]
        case NoticeSource.AWS_REBALANCE:
            return [Ec2Rebalance(Ec2Session(client))]
        case NoticeSource.AZURE:
            return [AzureScheduledEvents(client)]
        case NoticeSource.AUTO | NoticeSource.NONE:
            return []


def _asked_at(reply: Reply, clock: Clock) -> float:
    """When the server answered, by its own clock if it says so."""
    said = rfc1123(reply.headers.get("date"))
    return clock() if said is None else said


def _lead_s(at: float | None, now: float, *, most: float) -> float:
    """Seconds until ``at``, as far as the cloud gives them; 0 if it is past or unknown."""
    return 0.0 if at is None else min(max(0.0, at - now), most)


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NoAnswerError(f"not JSON: {text[:60]!r}") from error
    if not isinstance(found, dict):
        raise NoAnswerError(f"not a JSON object: {text[:60]!r}")
    return found


def _rfc3339(text: object) -> float | None:
    """Seconds since 1970; None if it is not a time of the form 2026-01-02T03:04:05Z."""
    try:
        at = datetime.strptime(str(text), "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError:
        return None
    return at.timestamp()


def rfc1123(text: object) -> float | None:
    """Seconds since 1970; None if it is not a time of the form Fri, 02 Jan 2026 03:04:05 GMT."""
    try:
        at = parsedate_to_datetime(str(text))
        return at.replace(tzinfo=at.tzinfo or UTC).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
