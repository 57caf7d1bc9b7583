"""JSON schemas of OpenAPI: what they refuse, and what they must take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft4Validator

from bamboo_devcluster.kube import schemas

OPEN = {"x-kubernetes-preserve-unknown-fields": True}
TEXT = {"type": "string"}
REFERENCE = {"$ref": "#/components/schemas/x.Meta"}


def thing(**fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields}


def takes(schema: dict[str, Any], value: Any) -> bool:
    Draft4Validator.check_schema(schema)
    return bool(Draft4Validator(schema).is_valid(value))


@pytest.mark.parametrize(
    ("schema", "taken", "refused"),
    [
        (thing(a=TEXT), {"a": "x"}, {"b": "x"}),
        (thing(a=thing(b=TEXT)), {"a": {"b": "x"}}, {"a": {"c": "x"}}),
        (thing(a={"type": "array", "items": thing(b=TEXT)}), {"a": [{}]}, {"a": [{"c": 1}]}),
        (
            {"type": "object", "additionalProperties": thing(b=TEXT)},
            {"any": {"b": "x"}},
            {"any": {"c": "x"}},
        ),
        ({"type": "object"}, {"any": 1}, []),
        (thing(a={"type": "object", **OPEN}), {"a": {"any": 1}}, {"a": 1}),
        ({**thing(a=TEXT), **OPEN}, {"any": 1}, {"a": 1}),
        ({"x-kubernetes-int-or-string": True}, "50%", 1.5),
        ({"x-kubernetes-int-or-string": True}, 1, None),
        ({**TEXT, "nullable": True, "enum": ["x"]}, None, "y"),
        ({**thing(a=TEXT), "nullable": True}, None, {"b": 1}),
        (TEXT, "x", None),
        # A condition closes nothing, but what it says holds.
        (
            {**thing(a=TEXT, b=TEXT), "anyOf": [thing(a={"enum": ["x"]}), {"required": ["b"]}]},
            {"a": "x", "b": "y"},
            {"a": "y"},
        ),
        (
            {**thing(a=thing(b=TEXT, c=TEXT)), "allOf": [thing(a=thing(b={"enum": ["x"]}))]},
            {"a": {"b": "x", "c": "y"}},
            {"a": {"b": "x", "d": "y"}},
        ),
        ({**thing(a=TEXT, b=TEXT), "not": thing(a={"enum": ["x"]})}, {"a": "y"}, {"a": "x"}),
        ({"type": "integer", "minimum": 0, "exclusiveMinimum": True}, 1, 0),
        # Fields that are named as keywords are.
        (thing(nullable=TEXT, default=TEXT, items=TEXT), {"default": "x", "items": "y"}, {"a": 1}),
    ],
)
def test_what_a_schema_takes(schema: dict[str, Any], taken: Any, refused: Any) -> None:
    before = json.dumps(schema)
    found = schemas.strict(schema)
    assert takes(found, taken)
    assert not takes(found, refused)
    assert json.dumps(schema) == before


KINDS = "x-kubernetes-group-version-kind"
DOCUMENT = {
    "components": {
        "schemas": {
            "x.Meta": thing(name=TEXT),
            "x.Tree": thing(child=REFERENCE | {"$ref": "#/components/schemas/x.Tree"}),
            "x.Pod": {
                **thing(
                    kind=TEXT, metadata={"allOf": [REFERENCE], "default": {}},
                    tree={"$ref": "#/components/schemas/x.Tree"},
                ),
                KINDS: [{"group": "", "version": "v1", "kind": "Pod"}],
            },
            "x.Scale": {
                **thing(kind=TEXT), KINDS: [{"group": "b", "version": "v1", "kind": "Scale"}],
            },
            "x.Options": {
                **thing(kind=TEXT),
                KINDS: [{"group": g, "version": "v1", "kind": "Options"} for g in ("", "b")],
            },
            "x.Unused": thing(kind=TEXT),
        }
    }
}  # fmt: skip


def test_kinds_of_a_document_bring_what_they_refer_to() -> None:
    found = schemas.of_document(DOCUMENT, "", "v1")
    assert set(found) == {"pod_v1.json"}
    pod = found["pod_v1.json"]
    assert set(pod["definitions"]) == {"x.Meta", "x.Tree"}
    assert takes(pod, {"kind": "Pod", "metadata": {"name": "a"}, "tree": {"child": {"child": {}}}})
    assert not takes(pod, {"kind": "Pod", "metadata": {"nam": "a"}})
    assert not takes(pod, {"kind": "Pod", "tree": {"child": {"child": {"leaf": 1}}}})


def definition(**fields: Any) -> dict[str, Any]:
    version = {"name": "v1", "schema": {"openAPIV3Schema": thing(**fields)}}
    return {"spec": {"group": "x.dev", "names": {"kind": "Thing"}, "versions": [version]}}


@pytest.mark.parametrize("metadata", [{}, {"metadata": thing(name={**TEXT, "maxLength": 3})}])
def test_a_definition_takes_every_metadata(metadata: dict[str, Any]) -> None:
    found = schemas.of_definition(definition(spec=thing(a=TEXT), **metadata))["thing_v1.json"]
    body = {"apiVersion": "x.dev/v1", "kind": "Thing", "metadata": {"name": "a", "labels": {}}}
    assert takes(found, {**body, "spec": {"a": "x"}})
    for wrong in ({"spec": {"b": "x"}}, {"apiVersion": "y.dev/v1"}, {"kind": "Thin"}, {"a": 1}):
        assert not takes(found, {**body, **wrong})
    assert takes(found, {**body, "metadata": {"name": "long"}}) == (not metadata)
    assert not takes(found, {"apiVersion": "x.dev/v1", "kind": "Thing"})


class Server:
    """Answers as the API server does."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def get(self, path: str) -> dict[str, Any]:
        self.asked.append(path)
        return DOCUMENT


async def test_schemas_are_written_where_kubeconform_looks(tmp_path: Path) -> None:
    server = Server()
    location = await schemas.write(server, tmp_path, ["v1", "b/v1"])  # type: ignore[arg-type]
    assert server.asked == ["/openapi/v3/api/v1", "/openapi/v3/apis/b/v1"]
    assert location == f"{tmp_path}/" + schemas.LOCATION
    assert (tmp_path / "b/scale_v1.json").is_file()
    assert takes(json.loads((tmp_path / "v1/pod_v1.json").read_text()), {"kind": "Pod"})
