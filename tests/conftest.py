"""One development cluster for all tests that need a control plane and nothing installed on it."""

from typing import Any

import pytest

from bamboo_devcluster.testing import devcluster, devcluster_api, devcluster_namespace

__all__ = ["devcluster", "devcluster_api", "devcluster_namespace"]


@pytest.fixture(scope="session")
def devcluster_images() -> dict[str, Any]:
    """For the cases of the development cluster; the others' pods run no container."""
    shout = {
        "image": "*/shout:*",
        "command": ["python", "-c", "import os,sys; print(os.environ['WORD'], *sys.argv[1:])"],
        "args": ["quietly"],
        "env": {"WORD": "hello"},
    }
    return {"images": [shout]}
