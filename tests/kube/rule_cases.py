"""Manifests that each CEL rule of the resource definition accepts and rejects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_VALIDATION = {"data": {"validation": {"factory": "pkg.data:build"}}}
_GROUPS = {"groups": [{"parameters": ["*bias"]}]}
_GROUPED = {"factory": "torch.optim:SGD", **_GROUPS}
CHECKPOINT = {"checkpoint": {"uri": "file:///c"}}
_BEST = {
    "checkpoint": {"uri": "file:///c", "best": {}},
    "training": {"validateEvery": 5},
    **_VALIDATION,
}
FROM = {"checkpoint": {"uri": "file:///c", "from": {"job": "a1-b2", "step": 4}}}


def source(**given: object) -> dict[str, Any]:
    return {"checkpoint": {"uri": "file:///c", "from": given}}


HOOKS = {"hooks": [{"factory": "pkg.trackers:build"}]}


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
    fixed("training", {}, {"training": {"clipNorm": 0.5}}),
    fixed("training", {}, {"training": {"precision": "TF32"}}),
    fixed("training", {}, {"training": {"optimizer": {"factory": "torch.optim:AdamW", **_GROUPS}}}),
    Case(
        "spec.training.steps can be raised, but not lowered",
        CHECKPOINT | {"training": {"steps": 12}},
        CHECKPOINT | {"training": {"steps": 9}},
        "to 9: create a new BambooJob",
        CHECKPOINT | {"training": {"steps": 10}},
    ),
    Case(
        "spec.training.steps cannot be raised without spec.checkpoint",
        {"training": {"steps": 10}},
        {"training": {"steps": 12}},
        "spec.training.steps cannot be raised from 10 to 12 without spec.checkpoint, from which the"
        " job would go on: create a new BambooJob",
        {"training": {"steps": 10}},
    ),
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
    stateless("hooks", HOOKS, {"hooks": [{"factory": "pkg.trackers:other"}]}),
    stateless("hooks", HOOKS, {"hooks": [{"factory": "pkg.trackers:build", "args": {"x": 1}}]}),
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
    factory(
        "module:function, for example bamboo_agent.schedules:cosine",
        {"training": {"optimizer": {"factory": "a:b", "schedule": {"factory": "cosine"}}}},
        'factory "cosine" must be module:function, for example bamboo_agent.schedules:cosine',
    ),
    Case(
        "spec.training.clip PerGroup clips",
        {"training": {"clip": "PerGroup", "clipNorm": 1.0, "optimizer": _GROUPED}},
        {"training": {"clip": "PerGroup", "clipNorm": 1.0}},
        "there is no spec.training.optimizer.groups: add groups, or use clip Whole",
    ),
    Case(
        "spec.training.clip is PerGroup",
        {"training": {"clip": "PerGroup", "clipNorm": 0.5, "optimizer": _GROUPED}},
        {"training": {"clip": "PerGroup", "optimizer": _GROUPED}},
        "spec.training.clipNorm is 0, which turns clipping off: set clipNorm, or leave clip out",
    ),
    factory(
        "module:function, for example my_package.trackers", {"hooks": [{"factory": "t"}]}, '"t"'
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
        "spec.model.initialFrom is not supported",
        {"model": {"initialFrom": "s3://weights/first"}},
        {"model": {"initialFrom": "weights"}},
        'spec.model.initialFrom "weights" is not supported: use an absolute path, file:///path',
    ),
    Case(
        "spec.checkpoint.uri is not supported",
        CHECKPOINT,
        {"checkpoint": {"uri": "ftp://b"}},
        'spec.checkpoint.uri "ftp://b" is not supported: use file:///path',
    ),
    Case(
        "spec.checkpoint.from needs uri or job",
        source(uri="file:///c/a1/attempt-0000/step-00000004"),
        source(uri="file:///c/a1", job="a1"),
        "spec.checkpoint.from needs uri or job, one of them",
    ),
    Case(
        "spec.checkpoint.from needs uri or job",
        FROM,
        source(step=4),
        "spec.checkpoint.from needs uri or job, one of them",
    ),
    Case(
        "spec.checkpoint.from.job is no UID",
        FROM,
        source(job="../a"),
        'spec.checkpoint.from.job "../a" is no UID: kubectl get bj NAME -o jsonpath',
    ),
    Case(
        "spec.checkpoint.from.uri is not supported",
        source(uri="file:///c/a1"),
        source(uri="ftp://b"),
        'spec.checkpoint.from.uri "ftp://b" is not supported: use file:///path',
    ),
    Case(
        "spec.checkpoint.from says with what",
        FROM,
        source(job="a1-b2", step=6),
        "spec.checkpoint.from says with what the job begins and cannot change",
        FROM | {"suspend": True},
    ),
    Case(
        "spec.checkpoint.from says with what",
        CHECKPOINT,
        FROM,
        "spec.checkpoint.from says with what the job begins and cannot change",
        CHECKPOINT | {"suspend": True},
    ),
    Case(
        "spec.restore.fromStep is 0, but the job begins",
        FROM | {"restore": {"id": "1", "fromStep": 4}},
        FROM | {"restore": {"id": "1", "fromStep": 0}},
        "the job begins with spec.checkpoint.from, not at step 0: name the step of a checkpoint",
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
        "spec.checkpoint.best needs validations",
        _BEST,
        _BEST | {"training": {"validateEvery": 0}},
        "spec.training.validateEvery is 0: set it, or leave best out",
    ),
    Case(
        "spec.checkpoint.everySteps and",
        {**_BEST, "checkpoint": {"uri": "file:///c", "everySteps": 10, "best": {}}},
        {**_BEST, "checkpoint": {"uri": "file:///c", "everySteps": 7, "best": {}}},
        "spec.checkpoint.everySteps 7 and spec.training.validateEvery 5: with spec.checkpoint.best",
    ),
    Case(
        "spec.checkpoint.best.metric is no name",
        {**_BEST, "checkpoint": {"uri": "file:///c", "best": {"metric": "top_5"}}},
        {**_BEST, "checkpoint": {"uri": "file:///c", "best": {"metric": "top-5"}}},
        'spec.checkpoint.best.metric "top-5" is no name of a metric: use letters, digits and _',
    ),
    Case(
        "spec.checkpoint.best says",
        {"runPolicy": {"backoffLimit": 9}},
        {"checkpoint": {"best": {"metric": "other"}}},
        "spec.checkpoint.best says what files hold and cannot change once it is set",
        _BEST | {"suspend": True},
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
