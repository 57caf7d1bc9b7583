"""A second release for the same namespaces is refused by helm itself."""

from __future__ import annotations

import pytest

from bamboo_cli.errors import CommandError

from .conftest import CHECKOUT, RecordedCluster


def test_helm_refuses_it(local: RecordedCluster) -> None:
    chart = str(CHECKOUT / "charts/bamboo")
    with pytest.raises(CommandError) as refusal:
        local.programs.helm(
            "install", "other", chart, "--namespace", "default", "--dry-run=server",
            "--set", "userRoles.create=false",
        )  # fmt: skip
    text = str(refusal.value)
    assert "release bamboo in namespace bamboo-system serves BambooJobs already" in text
    assert "give them different namespaces by the value `namespaces`" in text
