"""docs/reference/spec.md: every field of a BambooJob, from its definition and an example."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from scripts.reference.text import FOLDER, LONGEST_EXAMPLE, NOTE, Schema, sentence

EVERY_FIELD = FOLDER / "every-field.yaml"
INSTEAD = {"spec.checkpoint.from.uri": "s3://my-bucket/jobs/5f0e6a52/attempt-0000/step-00002000"}
"""Fields that exclude one of the example's."""


def spec_page(schema: Schema, example: Any) -> str:
    """Every field of the spec, one section for each object."""
    lines = [
        "# Fields of a BambooJob",
        "",
        NOTE,
        "`apiVersion: bamboo.dev/v1alpha1`, `kind: BambooJob`. The examples on this page come from",
        "[every-field.yaml](every-field.yaml), a job that sets every field.",
        "The API server applies the defaults and checks the limits and rules when you apply a job.",
    ]
    root = dict(schema["properties"]["spec"])
    # Rules about spec that read the status, too, stand at the root.
    of_spec = [rule for rule in _rules(schema) if rule.get("fieldPath") == ".spec"]
    rest = [rule for rule in _rules(schema) if rule not in of_spec]
    own = {"properties": {}, "x-kubernetes-validations": rest}
    root["x-kubernetes-validations"] = [*_rules(root), *of_spec]
    lines += ["", "## `metadata`", "", *_rule_lines(own)]
    for path, node in _objects("spec", root):
        lines += ["", f"## `{path}`", ""]
        if description := node.get("description"):
            lines += [sentence(description), ""]
        lines += _field_table(path, node, example)
        lines += _rule_lines(node)
    return "\n".join(lines) + "\n"


def fields(path: str, node: Schema) -> Iterator[tuple[str, Schema]]:
    """Every field below an object, with its path; items of a list are written ``name[]``."""
    for name, child in node.get("properties", {}).items():
        below = f"{path}.{name}"
        yield below, child
        yield from fields(below, child)
        if child.get("type") == "array":
            yield from fields(f"{below}[]", child["items"])


def _objects(path: str, node: Schema) -> Iterator[tuple[str, Schema]]:
    yield path, node
    for name, child in node.get("properties", {}).items():
        below = f"{path}.{name}"
        if child.get("type") == "array":
            below, child = f"{below}[]", child["items"]
        if "properties" in child:
            yield from _objects(below, child)


def _field_table(path: str, node: Schema, example: Any) -> list[str]:
    rows = ["| field | type | default | limits | meaning | example |", "|---|---|---|---|---|---|"]
    required = node.get("required", ())
    for name, child in node["properties"].items():
        cells = [
            f"`{name}`",
            _type(child),
            "required" if name in required else _default(child),
            _limits(child),
            sentence(child.get("description", "")),
            _example(f"{path}.{name}", child, example),
        ]
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return rows


def _type(node: Schema) -> str:
    if node.get("x-kubernetes-int-or-string"):
        return "quantity"
    kind = node.get("type", "any")
    if kind == "array":
        return f"list of {_type(node['items'])}s"
    if "additionalProperties" in node:
        return f"map of string to {_type(node['additionalProperties'])}"
    if node.get("x-kubernetes-preserve-unknown-fields"):
        return "free-form object"
    return str(kind)


def _default(node: Schema) -> str:
    if "default" in node and node["default"] != {}:
        return f"`{json.dumps(node['default'])}`"
    return "" if "properties" in node else "unset"


def _limits(node: Schema) -> str:
    parts = []
    if "enum" in node:
        parts.append("one of " + ", ".join(f"`{value}`" for value in node["enum"]))
    low, high = node.get("minimum"), node.get("maximum")
    if low is not None and high is not None:
        parts.append(f"{low:,} to {high:,}")
    if high := node.get("maxLength"):
        parts.append(f"{node.get('minLength', 0):,} to {high:,} characters")
    for key, what in (("maxItems", "items"), ("maxProperties", "entries")):
        if key in node:
            parts.append(f"at most {node[key]} {what}")
    if node.get("x-kubernetes-list-type") == "set":
        parts.append("no duplicates")
    if keys := node.get("x-kubernetes-list-map-keys"):
        parts.append(f"`{', '.join(keys)}` is unique")
    parts += [f"{rule['message']}" for rule in _rules(node) if "properties" not in node]
    return "; ".join(parts)


def _example(path: str, node: Schema, example: Any) -> str:
    if "properties" in node or "properties" in node.get("items", {}):
        return ""
    text = json.dumps(INSTEAD[path] if path in INSTEAD else _at(path, example))
    return f"`{text}`" if len(text) <= LONGEST_EXAMPLE else "see every-field.yaml"


def _at(path: str, example: Any) -> Any:
    """The value of a field in the example. KeyError if the example does not set it."""
    found = example
    for part in path.split("."):
        name = part.removesuffix("[]")
        if name not in found:
            raise KeyError(f"{EVERY_FIELD} does not set {path}")
        found = found[name]
        if part.endswith("[]"):
            wanted = path.rpartition(".")[2]
            found = next(item for item in found if wanted in item)
    return found


def _rules(node: Schema) -> list[dict[str, str]]:
    return list(node.get("x-kubernetes-validations", ()))


def _rule_lines(node: Schema) -> list[str]:
    """CEL rules that concern an object as a whole, with what the API server answers."""
    kinds = {"Rules:": [], "Rules for changes:": []}  # type: dict[str, list[str]]
    for rule in _rules(node):
        kind = "Rules for changes:" if "oldSelf" in rule["rule"] else "Rules:"
        kinds[kind].append(f"- {sentence(rule['message'])} <br> `{rule['rule']}`")
    lines = list[str]()
    for title, rules in kinds.items():
        if rules:
            lines += ["", title, "", *rules]
    return lines
