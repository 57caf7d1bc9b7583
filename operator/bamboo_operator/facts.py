"""The arbiter's durable facts in ``status.arbiter``: read at start, written before they count.

Compare and swap: a leader whose term is lower than the one that stands there writes nothing.
"""

from __future__ import annotations

from bamboo_core import durable as codec
from bamboo_core.durable import Durable
from bamboo_core.view import JobView
from bamboo_operator import api
from bamboo_operator.api import Api, ApiError, Object

_TRIES = 5


class NotWrittenError(Exception):
    """The API server could not be reached or refused; try again."""


class SupersededError(Exception):
    """A newer leader has written, or the job is gone: never try again."""


class JobGoneError(SupersededError):
    """Nobody needs the facts any more."""


def read(body: Object) -> Durable:
    """Of a BambooJob. ValueError if it is unreadable."""
    return codec.from_json((body.get("status") or {}).get("arbiter") or {})


async def write(kube: Api, job: JobView, durable: Durable) -> None:
    """Make the facts durable."""
    for _ in range(_TRIES):
        try:
            if await _try(kube, job, durable):
                return
        except ApiError as error:
            raise NotWrittenError(str(error)) from error
    raise NotWrittenError("the job changes all the time")


async def _try(kube: Api, job: JobView, durable: Durable) -> bool:
    body = await kube.get(api.job(job.namespace, job.name))
    if body is None or body["metadata"]["uid"] != job.uid:
        raise JobGoneError("the job is gone")
    if (term := read(body).term) > durable.term:
        raise SupersededError(f"term {term} has written, ours is {durable.term}")
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
        "status": {"arbiter": codec.to_json(durable)},
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
