"""Strict JSON schemas, as kubeconform reads them, of what an API server publishes as OpenAPI.

Strict: a field that is not described is refused, as `kubectl apply --validate=strict` does. Where
the server keeps fields that nobody describes, the schema takes them, too.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bamboo_devcluster.kube.client import KubeApi

Schema = dict[str, Any]

# For kubeconform's -schema-location, after the folder.
LOCATION = "{{.Group}}/{{.ResourceKind}}_{{.ResourceAPIVersion}}.json"
_DRAFT = "http://json-schema.org/draft-04/schema#"  # OpenAPI 3.0 has its keywords
_OPEN = "x-kubernetes-preserve-unknown-fields"
_EITHER = "x-kubernetes-int-or-string"
_KINDS = "x-kubernetes-group-version-kind"
_COMPONENTS = "#/components/schemas/"
_DEFINITIONS = "#/definitions/"


def strict(schema: Schema, *, closed: bool = True) -> Schema:
    """Return the JSON schema of an OpenAPI 3.0 schema.

    closed: refuse fields that are not described.
    """
    if "$ref" in schema:
        return {"$ref": schema["$ref"].replace(_COMPONENTS, _DEFINITIONS)}
    out = {
        key: value
        for key, value in schema.items()
        if not key.startswith("x-kubernetes-") and key not in ("nullable", "default")
    }
    if "properties" in schema:
        fields = schema["properties"].items()
        out["properties"] = {name: strict(field, closed=closed) for name, field in fields}
        if closed and not schema.get(_OPEN):
            out.setdefault("additionalProperties", False)
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            out[key] = strict(schema[key], closed=closed)
    # Junctions are conditions: what they do not mention is described beside them.
    for key in ("allOf", "anyOf", "oneOf"):
        if key in schema:
            out[key] = [strict(branch, closed=False) for branch in schema[key]]
    if "not" in schema:
        out["not"] = strict(schema["not"], closed=False)
    if schema.get(_EITHER):
        out["type"] = ["integer", "string"]
    return {"anyOf": [{"enum": [None]}, out]} if schema.get("nullable") else out


def of_definition(definition: Schema) -> dict[str, Schema]:
    """Return the schemas that a CustomResourceDefinition holds, by file name.

    They take every metadata, which the API server describes and the definition does not.
    """
    spec = definition["spec"]
    kind = spec["names"]["kind"]
    found: dict[str, Schema] = {}
    for version in spec["versions"]:
        schema = version["schema"]["openAPIV3Schema"]
        metadata = {**schema["properties"].get("metadata", {"type": "object"}), _OPEN: True}
        identity = {
            "apiVersion": {"type": "string", "enum": [f"{spec['group']}/{version['name']}"]},
            "kind": {"type": "string", "enum": [kind]},
        }
        properties = {**schema["properties"], **identity, "metadata": metadata}
        required = sorted({*schema.get("required", ()), "apiVersion", "kind", "metadata"})
        whole = strict({**schema, "properties": properties, "required": required})
        found[_file(kind, version["name"])] = {"$schema": _DRAFT, **whole}
    return found


def of_document(document: Schema, group: str, version: str) -> dict[str, Schema]:
    """Return the schemas of the kinds of a group version, by file name.

    document: what the server publishes below /openapi/v3. group: empty for the core's.
    """
    components = {
        name: strict(schema) for name, schema in document["components"]["schemas"].items()
    }
    found: dict[str, Schema] = {}
    for name, schema in document["components"]["schemas"].items():
        kinds = [(k["group"], k["version"], k["kind"]) for k in schema.get(_KINDS, ())]
        # What all groups share, such as DeleteOptions, stands for a kind in each of them.
        if len(kinds) == 1 and kinds[0][:2] == (group, version):
            needed = {used: components[used] for used in _reached(name, components)}
            whole = {"$schema": _DRAFT, **components[name], "definitions": needed}
            found[_file(kinds[0][2], version)] = whole
    return found


def _file(kind: str, version: str) -> str:
    return f"{kind.lower()}_{version}.json"


def _reached(name: str, components: Mapping[str, Schema]) -> list[str]:
    """Components that a component needs, also through others, without itself unless it recurs."""
    found: set[str] = set()
    waiting = list(_references(components[name]))
    while waiting:
        if (used := waiting.pop()) not in found:
            found.add(used)
            waiting += _references(components[used])
    return sorted(found)


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for part in value:
            yield from _references(part)
    elif isinstance(value, dict):
        if isinstance(reference := value.get("$ref"), str):
            yield reference.removeprefix(_DEFINITIONS)
        else:
            yield from _references(list(value.values()))


async def write(api: KubeApi, folder: Path, group_versions: Iterable[str]) -> str:
    """Write the schemas of all kinds of some group versions, such as v1 and apps/v1.

    Returns the location for kubeconform. ApiError if the server does not serve one of them.
    """
    for served in group_versions:
        group, _, version = served.rpartition("/")
        document = await api.get(f"/openapi/v3/{'apis' if group else 'api'}/{served}")
        target = folder / (group or version)
        target.mkdir(parents=True, exist_ok=True)
        for file, schema in of_document(document, group, version).items():
            (target / file).write_text(json.dumps(schema))
    return f"{folder}/{LOCATION}"
