"""The arbiter's durable facts in ``status.arbiter``: read at the start, written before they count.

:class:`LeaderFacts` of the core says what a write may replace. The resource version makes look and
write one action.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from bamboo_core.api.outcome import Outcome
from bamboo_core.arbiter_state.durable import Durable, from_json
from bamboo_core.controller.view import JobView
from bamboo_core.job import durable_writer
from bamboo_core.job.durable_writer import OvertakenError as OvertakenError
from bamboo_operator.kube import api
from bamboo_operator.kube.api import Api, ApiError, Object
from bamboo_operator.kube.object_views import job_view

_TRIES = 5


@dataclass(frozen=True)
class LeaderFacts(durable_writer.LeaderFacts):
    """One leader's facts of one job, with a mark that no other leader has."""

    writer: str = field(default_factory=lambda: uuid.uuid4().hex[:16])


class NotWrittenError(Exception):
    """The API server refused the write or could not be reached; try again."""


class JobGoneError(Exception):
    """The job was deleted."""


def read(body: Object) -> Durable:
    """The facts of a BambooJob. ValueError if they are unreadable."""
    return from_json((body.get("status") or {}).get("arbiter") or {})


def has_plan(body: Object) -> bool:
    """Whether a first plan was made, which has fixed how the job's gradients are summed."""
    return bool(((body.get("status") or {}).get("arbiter") or {}).get("batch"))


def steps_of(body: Object) -> int:
    """Steps at which training ends now, even if the rest is unreadable; 0: not known."""
    found = ((body.get("status") or {}).get("arbiter") or {}).get("steps")
    return found if isinstance(found, int) else 0


def has_members(body: Object) -> bool:
    """Whether the facts name members, who may hold the job's state. While they do not, the API
    server takes changes of the spec that need new agents: this is its rule in ``crds``."""
    facts = (body.get("status") or {}).get("arbiter") or {}
    return "agents" in facts and facts.get("outcome") != Outcome.SUSPENDED


async def write(kube: Api, job: JobView, durable: Durable, leader_facts: LeaderFacts) -> None:
    """Make the facts durable. Raises NotWrittenError, OvertakenError or JobGoneError.

    job: as it was when the facts were found. The first members since a start are written only if
    its spec is still the same: from then on the API server refuses changes that need new agents.
    """
    for _ in range(_TRIES):
        try:
            if await _try(kube, job, durable, leader_facts):
                return
        except ApiError as error:
            raise NotWrittenError(str(error)) from error
    raise NotWrittenError("the job changes too often")


async def _try(kube: Api, job: JobView, durable: Durable, leader_facts: LeaderFacts) -> bool:
    """False: the job has changed meanwhile, perhaps only in another part."""
    body = await kube.get(api.job(job.namespace, job.name))
    if body is None or body["metadata"]["uid"] != job.uid:
        raise JobGoneError("the job is gone")
    leader_facts.check((body.get("status") or {}).get("arbiter") or {}, durable)
    is_first = bool(durable.members) and not has_members(body)
    if is_first and job_view(body).generation != job.generation:
        raise NotWrittenError("the spec has changed since the plan was made")
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
        "status": {"arbiter": leader_facts.body(durable)},
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
