"""One thread and deterministic kernels, as workers have them; buckets of a real S3 server."""

from __future__ import annotations

import shutil
import uuid

import fsspec
import pytest

from bamboo_agent.setup.determinism import make_deterministic
from bamboo_devcluster import object_store
from bamboo_devcluster.programs import versitygw


@pytest.fixture(autouse=True)
def deterministic():
    make_deterministic()


@pytest.fixture(scope="session")
def store(tmp_path_factory):
    """Skipped only where the server is not in the cache and cannot be built."""
    if not (versitygw.cache_directory() / "versitygw").exists() and shutil.which("go") is None:
        pytest.skip("without an S3 server: `go`, which builds it, is not on the PATH")
    with object_store.running(tmp_path_factory.mktemp("s3") / "server") as server:
        yield server


@pytest.fixture
def bucket(store, monkeypatch):
    """Address of a new bucket, to which the environment gives all rights."""
    use(monkeypatch, store.environment)
    return store.make_bucket(f"bucket-{uuid.uuid4().hex[:12]}")


def use(monkeypatch, environment):
    """Have this process's next driver use these variables."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    fsspec.get_filesystem_class("s3").clear_instance_cache()
