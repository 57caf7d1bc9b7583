"""The arbiter's durable facts in ``status.arbiter``: read at the start, written before they count.

Compare and swap: a leader's first write replaces exactly the facts that it began from, and each
later write replaces its own. If it finds other facts it writes nothing, and the job must be led
again from those. Comparing terms is not enough: each leader raises the term that it has read, so
two leaders may have the same one.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from bamboo_core.arbiter import durable as codec
from bamboo_core.arbiter.durable import Durable
from bamboo_core.controller.view import JobView
from bamboo_operator import api
from bamboo_operator.api import Api, ApiError, Object

_TRIES = 5
_WRITER = "writer"


@dataclass(frozen=True)
class Line:
    """One leader's facts of one job."""

    began: Durable  # the facts that it read first
    # Marks the facts that it wrote.
    writer: str = field(default_factory=lambda: uuid.uuid4().hex[:16])


class NotWrittenError(Exception):
    """The API server refused the write or could not be reached; try again."""


class OvertakenError(Exception):
    """Another leader has written. Never try again; begin again from its facts."""


class JobGoneError(Exception):
    """The job was deleted."""


def read(body: Object) -> Durable:
    """The facts of a BambooJob. ValueError if they are unreadable."""
    return codec.from_json((body.get("status") or {}).get("arbiter") or {})


async def write(kube: Api, job: JobView, durable: Durable, line: Line) -> None:
    """Make the facts durable. Raises NotWrittenError, OvertakenError or JobGoneError."""
    for _ in range(_TRIES):
        try:
            if await _try(kube, job, durable, line):
                return
        except ApiError as error:
            raise NotWrittenError(str(error)) from error
    raise NotWrittenError("the job changes too often")


async def _try(kube: Api, job: JobView, durable: Durable, line: Line) -> bool:
    """False: the job has changed meanwhile, perhaps only in another part."""
    body = await kube.get(api.job(job.namespace, job.name))
    if body is None or body["metadata"]["uid"] != job.uid:
        raise JobGoneError("the job is gone")
    _compare(body, durable, line)
    meta = {
        "name": job.name,
        "namespace": job.namespace,
        "uid": job.uid,
        "resourceVersion": body["metadata"]["resourceVersion"],
    }
    patch = {
        "apiVersion": api.API_VERSION,
        "kind": "BambooJob",
        "metadata": meta,
        "status": {"arbiter": codec.to_json(durable) | {_WRITER: line.writer}},
    }
    try:
        path = api.job_status(job.namespace, job.name)
        await kube.apply(path, patch, manager=api.ARBITER_MANAGER)
    except ApiError as error:
        if error.is_conflict:
            return False
        if error.is_absence:
            raise JobGoneError("the job is gone") from error
        raise
    return True


def _compare(body: Object, durable: Durable, line: Line) -> None:
    found = (body.get("status") or {}).get("arbiter") or {}
    if not found or found.get(_WRITER) == line.writer:
        return  # no leader erases facts; if they are erased, ours are still the newest
    try:
        stored = read(body)
    except ValueError as error:
        raise OvertakenError(str(error)) from error
    if stored != line.began:
        raise OvertakenError(
            f"term {stored.term} has written {stored.plan}; ours, {durable.term}, began from term"
            f" {line.began.term} with {line.began.plan}"
        )
