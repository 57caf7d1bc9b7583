"""What the API server refuses by crds/, the core refuses with the same words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.kube.jobs import job
from tests.kube.rule_cases import CASES, Case

from bamboo_core.validation import server_rules
from bamboo_core.validation.reading import from_manifest
from bamboo_core.validation.server_rules import SIZES, UNIQUE, Size

ROOT = Path(__file__).resolve().parents[2]
KINDS = {"string": (str,), "array": (list,), "object": (dict,)}
OTHER_WORDS = {
    "spec.worker.env names": "spec.worker.env[0].name: 'BAMBOO_JOB' is reserved",
    "a step has over 393216 tasks": (  # it cannot count the chunks
        "49153 micro-batches of 2 samples; with spec.pipelines.count 2 and stages 2 a step has"
        " 393232 tasks, and at most 393216 can be planned: raise microBatchSize"
    ),
    "spec.worker.notices": "is [Auto, Gce]; Auto and None stand alone: remove the others",
}
NEW = [case for case in CASES if case.before is None]


def said(spec: dict[str, Any], name: str = "") -> str:
    """The problems of a new job, as a sentence."""
    body = job("default", name or "job", **spec)
    found = from_manifest(body, is_strict=True)
    problems = found if isinstance(found, list) else server_rules.problems(body, found)
    return "; ".join(map(str, problems))


NO_ADDRESSES = (
    "file:///", "ftp://b/p", "s3://", "s3:///p", "s3://key:secret@b/p", "s3://B/p", "s3://b1/p*",
    "s3://b1/p//q", "s3://b1/p::file://q", "gs://b1?x", "az://c@account.dfs:1/p", " s3://b1/p",
)  # fmt: skip
ADDRESSES = (
    "s3://b1", "s3://b1/", "s3://my.bucket-1/a/b_c=1/", "gs://my_bucket/p", "az://container/p",
    "abfs://container@account.dfs.core.windows.net/p",
)  # fmt: skip


@pytest.mark.parametrize("case", NEW, ids=lambda case: f"{case.rule[:40]}: {case.words[-30:]}")
def test_every_rule_for_new_jobs(case: Case) -> None:
    assert said(case.accepted, case.name) == ""
    refusal = said(case.rejected, case.rejected_name)
    if (words := OTHER_WORDS.get(case.rule)) is None:
        refusal, words = refusal.replace(": ", " ", 1), case.words
    assert words in refusal


@pytest.fixture(scope="module")
def schema() -> Any:
    crd = yaml.safe_load((ROOT / "crds/bamboojobs.yaml").read_text())
    return crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]


def nodes(path: str, node: Any) -> Iterator[tuple[str, Any]]:
    """Every node of the schema, with its path."""
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from nodes(f"{path}.{name}", child)
    if "items" in node:
        yield from nodes(f"{path}[]", node["items"])
    if "additionalProperties" in node:
        yield from nodes(f"{path}{{}}", node["additionalProperties"])


def size(node: Any) -> Size | None:
    """The limits of a node; None: it has none."""
    least = node.get("minLength", node.get("minItems", 0))
    most = node.get("maxLength", node.get("maxItems", node.get("maxProperties")))
    if most is None:
        return None
    kinds = (int, str) if node.get("x-kubernetes-int-or-string") else KINDS[node["type"]]
    return Size(least, most, node.get("pattern", ""), kinds)


def test_sizes_are_those_of_the_schema(schema: Any) -> None:
    found = {path: limits for path, node in nodes("spec", schema) if (limits := size(node))}
    assert found == SIZES
    patterns = {path for path, node in nodes("spec", schema) if "pattern" in node}
    assert patterns == {path for path, limits in SIZES.items() if limits.pattern}


def test_lists_without_doubles_are_those_of_the_schema(schema: Any) -> None:
    found = {
        path: tuple(node.get("x-kubernetes-list-map-keys", ()))
        for path, node in nodes("spec", schema)
        if node.get("x-kubernetes-list-type") in ("set", "map")
    }
    assert found == {path: (key,) if key else () for path, key in UNIQUE.items()}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"worker": {"image": ""}}, "spec.worker.image: is empty; set it"),
        (
            {"worker": {"image": "i" * 1025}},
            "spec.worker.image: has 1025 characters; at most 1024 are allowed: shorten it",
        ),
        (
            {"placement": {"zones": ["a", "z" * 64]}},
            "spec.placement.zones[1]: has 64 characters; at most 63 are allowed",
        ),
        (
            {"placement": {"zones": [f"z{x}" for x in range(33)]}},
            "spec.placement.zones: has 33 entries; at most 32 are allowed: remove some",
        ),
        (
            {"placement": {"zones": ["a", "b", "a"]}},
            'spec.placement.zones: names "a" twice; name it once',
        ),
        (
            {"worker": {"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}},
            'spec.worker.env: names "A" twice; name it once',
        ),
        (
            {"worker": {"env": [{"name": "A", "value": 1}]}},
            "spec.worker.env[0].value: is 1; it must be a string, in quotes",
        ),
        (
            {"worker": {"resources": {"limits": {"cpu": 0.5}}}},
            "spec.worker.resources.limits.cpu: is 0.5; it must be an integer or a string, in quote",
        ),
        (
            {"worker": {"resources": {"requests": {"memory": "2 Gi"}}}},
            "spec.worker.resources.requests.memory: is '2 Gi'; it must match",
        ),
        (
            {"redundancy": {"hostMemory": "1e9"}},
            "spec.redundancy.hostMemory: is '1e9'; it must match",
        ),
        *(
            ({"checkpoint": {"uri": uri}}, f'"{uri}" is not supported: use file:///path')
            for uri in NO_ADDRESSES
        ),
        *(
            ({"model": {"factory": "a:b", "initialFrom": uri}}, f'"{uri}" is not supported: use an')
            for uri in (*NO_ADDRESSES, "weights", "./weights")
        ),
        ({"placement": {"pools": [{"zones": ["a"], "nodeSelector": {"k": "v" * 64}}]}}, "has 64"),
        ({"model": {"factory": "a:b\n"}}, "must be module:function"),
    ],
)
def test_the_field_the_value_and_the_remedy_are_named(spec: dict[str, Any], words: str) -> None:
    assert words in said(spec)


@pytest.mark.parametrize("uri", ADDRESSES)
def test_a_checkpoint_may_be_in_a_bucket(uri: str) -> None:
    assert said({"checkpoint": {"uri": uri}}) == ""


@pytest.mark.parametrize("uri", [*ADDRESSES, "/data/first weights", "file:///data/w"])
def test_first_weights_may_be_in_a_folder_or_a_bucket(uri: str) -> None:
    assert said({"model": {"factory": "a:b", "initialFrom": uri}}) == ""


def test_addresses_have_the_pattern_of_the_schema(schema: Any) -> None:
    (rule,) = schema["properties"]["checkpoint"]["properties"]["uri"]["x-kubernetes-validations"]
    assert rule["rule"] == f"self.matches('^({server_rules.ADDRESS})$')"
    (rule,) = schema["properties"]["model"]["properties"]["initialFrom"]["x-kubernetes-validations"]
    assert rule["rule"] == f"self.matches('^({server_rules.FIRST_WEIGHTS})$')"


def test_numbers_are_quantities() -> None:
    resources = {"limits": {"cpu": 2, "memory": "1.5Gi"}, "requests": {"cpu": "500m"}}
    assert said({"worker": {"resources": resources}}) == ""


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({}, "metadata.name: is required; set it"),
        (None, "metadata.name: is required; set it"),
        ({"name": 3}, "metadata.name: is 3; it must be a string, in quotes"),
        ({"name": "1a"}, 'metadata.name: "1a" must be a DNS label of at most 40 characters'),
        ({"name": "a-"}, 'metadata.name: "a-" must be a DNS label'),
        ({"generateName": "A-"}, 'metadata.name: "A-xxxxx" must be a DNS label'),
        ({"generateName": "a" * 36}, "must be a DNS label of at most 40"),
        ({"generateName": "a-"}, ""),
    ],
)
def test_names(metadata: Any, words: str) -> None:
    body = job("default") | {"metadata": metadata}
    found = from_manifest(body)
    assert not isinstance(found, list)
    refusal = "; ".join(map(str, server_rules.problems(body, found)))
    assert words in refusal
    assert bool(words) == bool(refusal)
