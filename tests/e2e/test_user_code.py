"""Users' code that once trained wrong bits in silence: refused by name, or trained to the end."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bamboo_core.api.spec import DataSpec, FactorySpec
from bamboo_sim.user_code.case import Case, Refused
from bamboo_sim.user_code.cases import BY_NAME

from .jobs import Object, User, tiny_job

pytestmark = pytest.mark.timeout(300)

NAMES = ("cut", "tied", "group_counter_of_third", "groups", "mask_at_import_of_torch")


def manifest(name: str, case: Case) -> Object:
    """The job of the case, on two agents."""
    job = tiny_job(name.replace("_", "-"))
    spec = case.job(Path("unused"))  # the job keeps no checkpoints
    training = job["spec"]["training"]
    training |= {"steps": spec.training.steps, "globalBatchSize": spec.training.global_batch_size}
    training |= {"microBatchSize": spec.training.micro_batch_size}
    training["optimizer"] = _factory(spec.training.optimizer)
    del training["validateEvery"]
    job["spec"] |= {"model": _factory(spec.model), "data": _factory(spec.data)}
    return job


def _factory(given: FactorySpec | DataSpec) -> Object:
    return {"factory": given.factory, "args": dict(given.args)}


@pytest.fixture(scope="module")
def owner(guest: User) -> User:
    """A user whose jobs all run at the same time."""
    for name in NAMES:
        guest.apply(manifest(name, BY_NAME[name]))
    return guest


@pytest.mark.parametrize("name", NAMES)
def test_a_job_is_refused_by_name_or_trains_to_its_end(owner: User, name: str) -> None:
    expected = BY_NAME[name].expected
    job = owner.until_ended(name.replace("_", "-"))
    if not isinstance(expected, Refused):
        assert job.ended == "Complete", job.condition("Failed")
        return
    failed = job.condition("Failed")
    assert failed is not None
    assert failed.reason == "UserCodeFailed"
    assert all(re.search(words, failed.message) for words in expected.words), failed.message
