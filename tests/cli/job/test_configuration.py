"""What a report says of a job's spec."""

from __future__ import annotations

from typing import Any

from bamboo_cli.job.configuration import configuration
from bamboo_cli.job.state import read_job


def test_the_spec_in_words(training: dict[str, Any]) -> None:
    training["spec"]["placement"] = {"adjacency": "Alternate", "zones": ["a", "b"], "onDemand": {}}
    training["spec"]["checkpoint"] = {"uri": "file:///ckpt", "everySteps": 5}
    said = dict(read_job(training).configuration)
    assert said["grid"].startswith("2 pipelines x 4 stages")
    assert said["batch"] == "32 samples in micro-batches of 2"
    assert said["redundancy"] == "Replica"
    assert said["placement"] == "Alternate, zones a, b, on-demand nodes if spot is dry"
    assert said["checkpoints"] == "every 5 steps, in file:///ckpt"
    assert said["optimizer"].startswith("torch.optim:AdamW(lr=")
    assert said["steps"] == "32"
    training["spec"]["model"]["args"] = {"text": "x" * 999}
    assert len(dict(read_job(training).configuration)["model"]) == 203


def test_what_the_spec_leaves_out_is_not_invented() -> None:
    assert configuration({}) == ()
    assert configuration({"pipelines": {"count": 2}, "worker": None, "checkpoint": []}) == ()
    assert configuration({"checkpoint": {"uri": "file:///x"}}) == (
        ("checkpoints", "at the end and on suspend, in file:///x"),
    )
