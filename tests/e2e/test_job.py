"""A BambooJob behaves as a user of Jobs expects, with real kubectl."""

from __future__ import annotations

import re
from typing import Any

import pytest

from bamboo_cli.errors import ProgramError

from .jobs import User, eventually, tiny_job

pytestmark = pytest.mark.timeout(180)


def row(table: str) -> dict[str, str]:
    """The only row of kubectl's table, by column; a value that is absent is empty."""
    header, line = table.splitlines()
    begins = [found.start() for found in re.finditer(r"\S+", header)]
    ends = [*begins[1:], len(line)]
    return {
        header[begin:end].strip(): line[begin:end].strip()
        for begin, end in zip(begins, ends, strict=True)
    }


def test_from_apply_to_delete(user: User) -> None:
    from_apply_to_delete(user)


def from_apply_to_delete(user: User, **spec: Any) -> None:
    """The case, on a cluster with nodes of any kind."""
    assert "bamboojob.bamboo.dev/tiny created" in user.apply(tiny_job("tiny", **spec))
    assert "unchanged" in user.apply(tiny_job("tiny", **spec))
    user.kubectl("wait", "--for=condition=Complete", "bj/tiny", "--timeout=90s", timeout_s=100)

    shown = row(user.kubectl("get", "bj"))
    assert list(shown)[:7] == ["NAME", "PHASE", "PIPELINES", "STEP", "LEFT", "LOSS", "LOST"]
    assert (shown["NAME"], shown["PHASE"], shown["STEP"]) == ("tiny", "Complete", "10")
    assert shown["PIPELINES"] == shown["LEFT"] == ""  # no pipeline trains, and none should
    assert float(shown["LOSS"]) < 5.6  # a uniform guess over 256 bytes has loss 5.55

    job = user.job("tiny")
    assert (job.step, job.lost, job.attempt) == (10, 0, 0)
    assert job.validation_loss is not None

    described = user.kubectl("describe", "bj", "tiny")
    assert re.search(r"Reason:\s+StepsReached", described)
    assert "Events:" in described
    assert user.kubectl("explain", "bamboojob.spec.pipelines").count("stages")

    first, second = user.pods("tiny")
    name = first["metadata"]["name"]
    assert name == "tiny-p0-s0-i0"
    assert f'"{name}"' in user.kubectl("logs", name)
    zones = [pod["spec"]["nodeSelector"]["topology.kubernetes.io/zone"] for pod in (first, second)]
    assert zones[0] != zones[1]
    assert job.has("ZoneSpreadSatisfied")

    user.kubectl("delete", "bj", "tiny")
    eventually(lambda: not user.get("pods"), timeout_s=30, explain=lambda: str(user.get("pods")))
    with pytest.raises(ProgramError, match="not found"):
        user.kubectl("get", "bj", "tiny")
