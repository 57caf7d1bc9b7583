"""Manifests that each CEL rule of the resource definition accepts and rejects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_VALIDATION = {"data": {"validation": {"factory": "pkg.data:build"}}}
CHECKPOINT = {"checkpoint": {"uri": "file:///c"}}


@dataclass(frozen=True)
class Case:
    """rule: how its static message begins; accepted, rejected: spec; words: in the answer.

    before: spec of the job that is changed to them; None: they are created.
    """

    rule: str
    accepted: dict[str, Any]
    rejected: dict[str, Any]
    words: str
    before: dict[str, Any] | None = None
    name: str = ""
    rejected_name: str = ""
    phase: str = ""  # of the job that is changed


def fixed(what: str, before: dict[str, Any], after: dict[str, Any], words: str = "") -> Case:
    """A field that decides the result never changes, whether the job is suspended or not."""
    text = words or f"spec.{what} decides the result and cannot change: create a new BambooJob"
    return Case(f"spec.{what} decides", before, after, text, before | {"suspend": True})


REST = "set spec.suspend to true, and wait until the job's condition Suspended is true"


def resting(what: str, before: dict[str, Any], after: dict[str, Any], words: str = "") -> Case:
    """A field that may change only while the job is suspended, and no agent has a plan."""
    rule = f"spec.{what} cannot change until spec.suspend is true and no agents have a plan: {REST}"
    return Case(rule, before, after, words or rule, before)


def stateless(what: str, before: dict[str, Any], after: dict[str, Any]) -> Case:
    """A field that may change only while no agent has a plan, whether suspended or not."""
    rule = f"spec.{what} cannot change while agents have a plan, whether or not they run: {REST}"
    return Case(rule, before, after, rule, before)


def factory(example: str, spec: dict[str, Any], words: str) -> Case:
    return Case(f"factory must be {example}", {}, spec, words)


CASES = [
    Case("metadata.name must", {}, {}, '"a.b" must be a DNS label', rejected_name="a.b"),
    Case("metadata.name must", {}, {}, "at most 40", name="a" * 40, rejected_name="a" * 41),
    Case(
        "the global batch has fewer micro-batches than there are pipelines",
        {"pipelines": {"count": 16, "stages": 1}},
        {"pipelines": {"count": 17, "stages": 1}},
        "spec.training.globalBatchSize 32 makes 16 micro-batches of 2 samples, fewer than"
        " spec.pipelines.count 17: raise globalBatchSize",
    ),
    Case(
        "the global batch has fewer micro-batches than spec.pipelines.max",
        {"pipelines": {"max": 16}},
        {"pipelines": {"max": 17}},
        "fewer than spec.pipelines.max 17: raise globalBatchSize, or lower microBatchSize or max",
    ),
    Case(
        "a step has over 393216 tasks",
        {"training": {"globalBatchSize": 98302, "microBatchSize": 2}},
        {"training": {"globalBatchSize": 98306, "microBatchSize": 2}},
        "spec.training.globalBatchSize 98306 makes 49153 micro-batches of 2 samples; with"
        " spec.pipelines.stages 2 a step has over 393216 tasks, which cannot be planned",
    ),
    Case(
        "spec.redundancy.mode keeps",
        {"redundancy": {"mode": "Replica"}},
        {"redundancy": {"mode": "Replica"}, "pipelines": {"stages": 1}},
        "but spec.pipelines.stages is 1: use mode None, or at least 2 stages",
    ),
    Case(
        "spec.redundancy.mode keeps",
        {"redundancy": {"mode": "Auto"}, "pipelines": {"stages": 1}},
        {"redundancy": {"mode": "Eager"}, "pipelines": {"stages": 1}},
        "spec.redundancy.mode Eager keeps a copy of the next stage",
    ),
    Case(
        "spec.training.validateEvery",
        {"training": {"validateEvery": 5}} | _VALIDATION,
        {"training": {"validateEvery": 5}},
        "spec.training.validateEvery is 5, but there is no spec.data.validation: add it",
    ),
    Case(
        "spec.placement.adjacency Alternate",
        {"placement": {"zones": ["a", "b"]}},
        {"placement": {"zones": ["a"]}},
        'spec.placement.zones names only "a": add a zone, or use adjacency Cluster',
    ),
    Case(
        "an odd number of spec.pipelines.stages",
        {"placement": {"zones": ["a", "b", "c"]}, "pipelines": {"stages": 3}},
        {"placement": {"zones": ["a", "b"]}, "pipelines": {"stages": 3}},
        "spec.pipelines.stages 3 is odd: in a ring with adjacency Alternate it needs three zones",
    ),
    fixed("model", {}, {"model": {"factory": "pkg.models:other"}}),
    fixed("data", {}, {"data": {"factory": "pkg.data:other"}}),
    fixed("training", {}, {"training": {"steps": 11}}),
    fixed("numerics", {}, {"numerics": "Fast"}, "cannot change from Canonical to Fast"),
    fixed("seed", {}, {"seed": 3}, "spec.seed decides the result and cannot change from 0 to 3"),
    stateless("training.onNonFinite", {}, {"training": {"onNonFinite": {"skip": 3}}}),
    resting(
        "pipelines.stages",
        {},
        {"pipelines": {"stages": 4}},
        f"from 2 to 4 until spec.suspend is true and no agents have a plan: {REST}",
    ),
    resting("pipelines.max", {}, {"pipelines": {"max": 4}}),
    stateless("redundancy", {}, {"redundancy": {"mode": "Replica"}}),
    stateless("recovery", {}, {"recovery": {"policy": "Peers"}}),
    stateless("placement", {}, {"placement": {"zones": ["a", "b"]}}),
    stateless(
        "transport.channel and encryption",
        {"transport": {"bandwidthGbps": 25}},
        {"transport": {"channel": "ProcessGroup"}},
    ),
    stateless(
        "transport.channel and encryption",
        {"transport": {"bandwidthGbps": 25}},
        {"transport": {"encryption": "Off"}},
    ),
    stateless("corruption", {}, {"corruption": {"mode": "Detect"}}),
    stateless("worker", {}, {"worker": {"image": "agent:2"}}),
    stateless("checkpoint", CHECKPOINT, {"checkpoint": {"everySteps": 9}}),
    Case(
        "spec.checkpoint.uri holds",
        {"runPolicy": {"backoffLimit": 9}},
        {"checkpoint": {"uri": "file:///d"}},
        'spec.checkpoint.uri "file:///c" holds the job\'s state and cannot change',
        CHECKPOINT | {"suspend": True},
    ),
    Case(
        "the job has ended, and what",
        {"runPolicy": {"backoffLimit": 9}},
        {"worker": {"image": "agent:2"}},
        "the job has ended (status.phase is Failed), and what its agents were made from or set up"
        " with cannot change: create a new BambooJob",
        {},
        phase="Failed",
    ),
    factory("module:function, for example my_package.models", {"model": {"factory": "m"}}, '"m"'),
    factory(
        "module:function, for example my_package.data", {"data": {"factory": "a:b:c"}}, "a:b:c"
    ),
    factory(
        "module:function, for example my_package.data",
        {"data": {"validation": {"factory": "1:b"}}},
        'factory "1:b" must be module:function',
    ),
    factory(
        "module:class",
        {"training": {"optimizer": {"factory": "AdamW"}}},
        'factory "AdamW" must be module:class, for example torch.optim:AdamW',
    ),
    Case(
        "spec.training.globalBatchSize is not a multiple",
        {"training": {"microBatchSize": 4}},
        {"training": {"microBatchSize": 3}},
        "spec.training.globalBatchSize 32 is not a multiple of microBatchSize 3: choose a multiple",
    ),
    Case(
        "spec.pipelines.min is more than count",
        {"pipelines": {"min": 2}},
        {"pipelines": {"min": 3}},
        "spec.pipelines.min 3 is more than count 2: lower min or raise count",
    ),
    Case(
        "spec.pipelines.count is more than max",
        {"pipelines": {"max": 2}},
        {"pipelines": {"max": 1}},
        "spec.pipelines.count 2 is more than max 1: lower count or raise max",
    ),
    Case(
        "spec.pipelines.count times stages",
        {"pipelines": {"count": 4, "stages": 256}},
        {"pipelines": {"count": 5, "stages": 256}},
        "spec.pipelines.count 5 times stages 256 makes 1280 agents; at most 1024",
    ),
    Case(
        "spec.checkpoint.uri is not supported",
        CHECKPOINT,
        {"checkpoint": {"uri": "s3://b"}},
        'spec.checkpoint.uri "s3://b" is not supported: use file:///path',
    ),
    Case(
        "spec.worker.env names",
        {
            "worker": {
                "env": [{"name": "A", "value": "b"}, {"name": "BAMBOO_THREADS", "value": "2"}]
            }
        },
        {"worker": {"env": [{"name": "BAMBOO_JOB", "value": "b"}]}},
        'spec.worker.env name "BAMBOO_JOB" is reserved: choose one that does not begin with BAMBOO',
    ),
    Case(
        "spec.worker.notices",
        {"worker": {"notices": ["Gce", "Azure"]}},
        {"worker": {"notices": ["Auto", "Gce"]}},
        "spec.worker.notices: Auto and None stand alone: remove the others",
    ),
    Case(
        "spec.restore.fromStep needs spec.checkpoint",
        {"restore": {"id": "1", "fromStep": 0}},
        {"restore": {"id": "1", "fromStep": 2}},
        "spec.restore.fromStep is 2, but there is no spec.checkpoint: use 0 for the start",
    ),
    Case(
        "spec.restore.fromStep is more than spec.training.steps",
        CHECKPOINT | {"training": {"steps": 8}, "restore": {"id": "1", "fromStep": 8}},
        CHECKPOINT | {"training": {"steps": 8}, "restore": {"id": "1", "fromStep": 9}},
        "spec.restore.fromStep 9 is more than spec.training.steps 8: name the step of a checkpoint",
    ),
    Case(
        "spec.restore.fromStep cannot change with the same",
        CHECKPOINT | {"restore": {"id": "1", "fromStep": 2}},
        CHECKPOINT | {"restore": {"id": "1", "fromStep": 4}},
        'spec.restore.fromStep cannot change from 2 to 4 with the same spec.restore.id "1",',
        CHECKPOINT | {"restore": {"id": "1", "fromStep": 2}},
    ),
]
