"""Checks ``worker.podTemplate`` and ``worker.env``, which the API server does not check.

A user who may create BambooJobs but no pods must not get the node, another service account or a
Secret through a BambooJob. So a template may hold what :mod:`bamboo_core.validation.pod_rules`
lists, and nothing else, unless the administrator trusts all users. Some fields belong to the
operator. If the job prefers spot nodes, the template must not ask for them by itself. Labels, here
and in ``spec.placement``, must be such that the API server takes the pods that get them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bamboo_core.api.records import Problem
from bamboo_core.api.spec import AGENT_CONTAINER
from bamboo_core.placement.node_pools import SPOT_LABELS
from bamboo_core.validation import devices, pod_rules, reserved
from bamboo_core.validation.pod_rules import RESTRICTED, PodRules

_OWNED = ("restartPolicy", "nodeName", "terminationGracePeriodSeconds", "hostname", "subdomain")
_LISTS = ("containers", "initContainers", "volumes", "tolerations", "imagePullSecrets")
_CONTAINER_LISTS = ("env", "envFrom", "ports", "volumeMounts")
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_RULES = ("matchExpressions", "matchFields")
_SHOWN = 80
_LONGEST_WORD = 63
_LONGEST_DOMAIN = 253
_WORD = re.compile("[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_PART = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DOMAIN = re.compile(rf"{_PART}(\.{_PART})*")
_LETTERS = "of A-Z, a-z, 0-9, '-', '_' and '.', and begins and ends with a letter or digit"
_SELECTOR = "spec.placement.onDemand.nodeSelector"
_TEMPLATE = "spec.worker.podTemplate.spec"


def problems(template: dict[str, Any], *, path: str, rules: PodRules = RESTRICTED) -> list[Problem]:
    """The problems of a pod template."""
    found = [
        Problem(f"{path}.{key}", "is not supported; only metadata and spec are")
        for key in template
        if key not in ("metadata", "spec")
    ]
    found += _no_objects(template, ("metadata", "spec"), path)
    if found:
        return found
    metadata, spec = template.get("metadata", {}), template.get("spec", {})
    found = [
        *_metadata_problems(metadata, f"{path}.metadata"),
        *_spec_problems(spec, f"{path}.spec"),
    ]
    found = found or [*reserved.problems(spec, path=f"{path}.spec")]
    if found or rules.trusted:
        return found
    allowed = pod_rules.problems(metadata, spec, path=path, rules=rules)
    return [*_no_images(spec, f"{path}.spec"), *allowed]


def env_problems(
    env: Iterable[dict[str, Any]], *, path: str, rules: PodRules = RESTRICTED
) -> list[Problem]:
    """The problems of ``worker.env``, whose items are objects."""
    found = _variable_problems(env, path)
    if found or rules.trusted:
        return found
    return pod_rules.env_problems(env, path=path, rules=rules)


def label_problems(labels: Mapping[str, Any], *, path: str) -> list[Problem]:
    """Why the API server refuses these labels of a pod or a node; path: of all of them."""
    found = _key_problems(labels, path)
    for key, value in labels.items():
        if not _is_key(key):
            continue
        if not isinstance(value, str):
            found.append(Problem(f"{path}.{key}", f"is {_shown(value)}; it must be a string"))
        else:
            found += _value_problems(value, f"{path}.{key}")
    return found


def zone_problems(zones: Iterable[str], *, path: str) -> list[Problem]:
    """Zones are values of a label of nodes, and not empty; path: of the list."""
    found = list[Problem]()
    for index, zone in enumerate(zones):
        found += _value_problems(zone, f"{path}[{index}]")
        if not zone:
            found.append(Problem(f"{path}[{index}]", "is empty; name a zone, or remove it"))
    return found


def _metadata_problems(metadata: dict[str, Any], path: str) -> list[Problem]:
    if found := _no_strings(metadata, ("labels", "annotations"), path):
        return found
    found = label_problems(metadata.get("labels", {}), path=f"{path}.labels")
    # The API server makes the keys of annotations lower-case before it looks at them.
    wrong = [key for key in metadata.get("annotations", {}) if not _is_key(key.lower())]
    return found + _key_problems(wrong, f"{path}.annotations")


def _key_problems(keys: Iterable[str], path: str) -> list[Problem]:
    text = f"a key has 1 to {_LONGEST_WORD} {_LETTERS}; before it may stand a DNS name of at most"
    text += f" {_LONGEST_DOMAIN} characters and '/': correct it"
    return [Problem(path, f"has the key {_shown(key)}; {text}") for key in keys if not _is_key(key)]


def _is_key(text: str) -> bool:
    domain, slash, word = text.rpartition("/")
    is_domain = len(domain) <= _LONGEST_DOMAIN and _DOMAIN.fullmatch(domain)
    return bool((is_domain or not slash) and _is_word(word))


def _value_problems(value: str, path: str) -> list[Problem]:
    if not value or _is_word(value):
        return []
    if (size := len(value)) > _LONGEST_WORD:
        text = f"has {size} characters; at most {_LONGEST_WORD} are allowed: shorten it"
        return [Problem(path, text)]
    text = f"it has at most {_LONGEST_WORD} {_LETTERS}: correct it"
    return [Problem(path, f"is {value!r}; {text}")]


def _is_word(text: str) -> bool:
    return len(text) <= _LONGEST_WORD and bool(_WORD.fullmatch(text))


def _spec_problems(spec: dict[str, Any], path: str) -> list[Problem]:
    found = [
        Problem(f"{path}.{key}", "is set by the operator; remove it")
        for key in _OWNED
        if key in spec
    ]
    found += _no_strings(spec, ("nodeSelector",), path) or label_problems(
        spec.get("nodeSelector", {}), path=f"{path}.nodeSelector"
    )
    found += _no_objects(spec, ("securityContext",), path)
    found += _affinity_problems(spec, path)
    for key in _LISTS:
        found += _no_lists(spec, (key,), path) or _list_problems(spec, key, path)
    return found or [*_double_names(spec, path)]


def _double_names(spec: dict[str, Any], path: str) -> Iterator[Problem]:
    """Containers of all kinds must have different names. The agent's own is always there."""
    owners = dict[str, str]()
    for key in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(key, [])):
            where, name = f"{path}.{key}[{index}]", container["name"]
            if name in owners:
                text = f"{_shown(name)} is the name of {owners[name]} too; choose another name"
                yield Problem(f"{where}.name", text)
            owners.setdefault(name, where)
        owners.setdefault(AGENT_CONTAINER, "the agent's own container")


def _no_images(spec: dict[str, Any], path: str) -> Iterator[Problem]:
    """Only the agent's own container gets its image from the operator. Else a misspelt name of it
    would be a container of its own."""
    for key in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(key, [])):
            if container.get("image") or container["name"] == AGENT_CONTAINER:
                continue
            text = "is required; set it"
            if key == "containers":
                text += f", or name the container {AGENT_CONTAINER!r} to extend the agent's own one"
            yield Problem(f"{path}.{key}[{index}].image", text)


def _affinity_problems(spec: dict[str, Any], path: str) -> list[Problem]:
    """The problems of those parts of an affinity to which the operator adds rules."""
    if found := _no_objects(spec, ("affinity",), path):
        return found
    affinity, path = spec.get("affinity", {}), f"{path}.affinity"
    if found := _no_objects(affinity, ("nodeAffinity", "podAntiAffinity"), path):
        return found
    on_nodes, on_pods = affinity.get("nodeAffinity", {}), affinity.get("podAntiAffinity", {})
    found = _no_lists(on_pods, (_REQUIRED,), f"{path}.podAntiAffinity")
    found += _no_objects(on_nodes, (_REQUIRED,), path := f"{path}.nodeAffinity")
    if found:
        return found
    required, path = on_nodes.get(_REQUIRED, {}), f"{path}.{_REQUIRED}"
    if found := _no_lists(required, ("nodeSelectorTerms",), path):
        return found
    return [
        problem
        for index, term in enumerate(required.get("nodeSelectorTerms", []))
        for problem in _no_lists(term, _RULES, f"{path}.nodeSelectorTerms[{index}]")
    ]


def _list_problems(spec: dict[str, Any], key: str, path: str) -> list[Problem]:
    found = []
    for index, entry in enumerate(spec.get(key, [])):
        where = f"{path}.{key}[{index}]"
        if key != "tolerations":
            found += _name_problems(entry, where)
        if key in ("containers", "initContainers"):
            found += _container_problems(entry, where)
    return found


def _name_problems(entry: dict[str, Any], path: str) -> list[Problem]:
    name = entry.get("name")
    if not name:
        return [Problem(f"{path}.name", "is required; set it")]
    return [] if isinstance(name, str) else [_wrong(f"{path}.name", name, "a string")]


def _container_problems(container: dict[str, Any], path: str) -> list[Problem]:
    found = _no_objects(container, ("securityContext", "resources"), path)
    found += _no_lists(container, _CONTAINER_LISTS, path)
    if found:
        return found
    context = container.get("securityContext", {})
    found = _no_objects(context, ("capabilities",), f"{path}.securityContext")
    found += devices.problems(container.get("resources", {}), f"{path}.resources")
    return found + _variable_problems(container.get("env", []), f"{path}.env")


def _variable_problems(env: Iterable[dict[str, Any]], path: str) -> list[Problem]:
    found: list[Problem] = []
    for index, variable in enumerate(env):
        where = f"{path}[{index}]"
        found += _name_problems(variable, where)
        if reserved.is_reserved(variable.get("name")):
            text = f"{variable['name']!r} is reserved; choose one without {reserved.VARIABLES}"
            found.append(Problem(f"{where}.name", text))
    return found


def _no_objects(given: dict[str, Any], keys: Iterable[str], path: str) -> list[Problem]:
    return [
        _wrong(f"{path}.{key}", given[key], "an object")
        for key in keys
        if not isinstance(given.get(key, {}), dict)
    ]


def _no_strings(given: dict[str, Any], keys: Iterable[str], path: str) -> list[Problem]:
    """For objects whose values are strings, such as labels."""
    found = _no_objects(given, keys, path)
    return found or [
        _wrong(f"{path}.{key}.{name}", value, "a string (in quotes)")
        for key in keys
        for name, value in given.get(key, {}).items()
        if not isinstance(value, str)
    ]


def _no_lists(given: dict[str, Any], keys: Iterable[str], path: str) -> list[Problem]:
    def is_wrong(value: Any) -> bool:
        return not isinstance(value, list) or not all(isinstance(e, dict) for e in value)

    return [
        _wrong(f"{path}.{key}", given[key], "a list of objects")
        for key in keys
        if is_wrong(given.get(key, []))
    ]


def _wrong(path: str, value: Any, wanted: str) -> Problem:
    return Problem(path, f"is {_shown(value)}; it must be {wanted}, or be left out")


def _shown(value: Any) -> str:
    text = repr(value)
    return text[:_SHOWN] + "..." if len(text) > _SHOWN else text


def spot_problems(
    template: Mapping[str, Any], on_demand: Mapping[str, Any], *, has_pool_labels: bool
) -> list[Problem]:
    """Settings that keep all agents off on-demand nodes although the job may use some.

    template: of the pods, as the user gives it; on_demand: labels that these nodes must have.
    """
    found = label_problems(on_demand, path=_SELECTOR)
    if has_pool_labels and not on_demand:
        text = "is empty, but spec.placement.pools has labels: name those of on-demand nodes, which"
        found.append(Problem(_SELECTOR, f"{text} take the place of the pool's"))
    own = _part(template, "spec", "nodeSelector")
    for key, value in SPOT_LABELS:
        if own.get(key) == value and on_demand.get(key, value) == value:
            text = f"{value!r} keeps agents off on-demand nodes: remove it, since"
            text += f" spec.placement.onDemand asks for spot nodes by itself, or set {key} in"
            found.append(Problem(f"{_TEMPLATE}.nodeSelector.{key}", f"{text} {_SELECTOR}"))
    terms = _part(template, "spec", "affinity", "nodeAffinity", _REQUIRED).get("nodeSelectorTerms")
    if isinstance(terms, list) and terms and all(map(_asks_for_spot, terms)):
        text = "asks for spot nodes, so no agent gets an on-demand node: remove that rule, since"
        text += " spec.placement.onDemand asks for spot nodes by itself"
        found.append(Problem(f"{_TEMPLATE}.affinity.nodeAffinity.{_REQUIRED}", text))
    return found


def _asks_for_spot(term: Any) -> bool:
    rules = term.get("matchExpressions") if isinstance(term, dict) else None
    wanted = [{"key": key, "operator": "In", "values": [value]} for key, value in SPOT_LABELS]
    return isinstance(rules, list) and any(rule in wanted for rule in rules)


def _part(given: Any, *keys: str) -> dict[str, Any]:
    """The object there; empty: there is none."""
    for key in keys:
        given = given.get(key) if isinstance(given, dict) else None
    return given if isinstance(given, dict) else {}
