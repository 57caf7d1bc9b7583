"""Environment and command of a container: the kubelet's rules."""

import pytest

from bamboo_devcluster.errors import SpecError
from bamboo_devcluster.kube.quantities import divide_quantity, parse_quantity
from bamboo_devcluster.nodes.process.pods.env import (
    ConfigError,
    PodFacts,
    container_argv,
    container_env,
    expand,
    field_value,
    referenced_objects,
    resource_value,
    simulated_devices,
)
from bamboo_devcluster.spec import Image

POD = {
    "metadata": {
        "name": "p", "namespace": "n", "uid": "u",
        "labels": {"b": 'say "hi"', "a": "1"}, "annotations": {"x": "line\nbreak"},
    },
    "spec": {
        "nodeName": "node", "serviceAccountName": "sa",
        "containers": [{"name": "big", "resources": {"limits": {"memory": "2Gi"}}}],
    },
}  # fmt: skip
FACTS = PodFacts(
    POD, "127.1.2.3", "127.1.0.2", {"cpu": "8", "memory": "32Gi"},
    config_maps={"c": {"data": {"K": "v"}, "binaryData": {"B": "AAE="}}, "none": None},
    secrets={"s": {"data": {"pw": "aHVzaA=="}}},
)  # fmt: skip


def env(*items, **container):
    return container_env({"env": list(items), **container}, FACTS, {"BASE": "1"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$(A)", "x"),
        ("$(A)$(A)", "xx"),
        ("$(UNKNOWN)", "$(UNKNOWN)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$x"),
        ("$A ${A} $", "$A ${A} $"),
        ("$(A", "$(A"),
    ],
)
def test_expansion(text: str, expected: str) -> None:
    assert expand(text, {"A": "x"}) == expected


def test_later_variables_may_use_earlier_ones_only() -> None:
    seen = env(
        {"name": "EARLY", "value": "$(LATE)"},
        {"name": "LATE", "value": "$(BASE)2"},
        {"name": "BOTH", "value": "$(LATE)3"},
    )
    assert (seen["EARLY"], seen["LATE"], seen["BOTH"]) == ("$(LATE)", "12", "123")


def test_sources_of_values() -> None:
    def source(**value_from):
        return {"name": "V", "valueFrom": value_from}

    assert env(source(configMapKeyRef={"name": "c", "key": "K"}))["V"] == "v"
    assert env(source(secretKeyRef={"name": "s", "key": "pw"}))["V"] == "hush"
    assert env(source(fieldRef={"fieldPath": "status.podIP"}))["V"] == "127.1.2.3"
    assert "V" not in env(source(configMapKeyRef={"name": "c", "key": "Z", "optional": True}))
    assert "V" not in env(source(secretKeyRef={"name": "z", "key": "Z", "optional": True}))
    memory = {"resource": "limits.memory", "containerName": "big", "divisor": "1Mi"}
    assert env(source(resourceFieldRef=memory))["V"] == "2048"


def test_env_from_is_overridden_by_env() -> None:
    source = [{"prefix": "P_", "configMapRef": {"name": "c"}}, {"secretRef": {"name": "s"}}]
    seen = env({"name": "pw", "value": "mine"}, envFrom=source)
    assert (seen["P_K"], seen["P_B"], seen["pw"]) == ("v", "\x00\x01", "mine")


@pytest.mark.parametrize(
    ("value_from", "message"),
    [
        ({"configMapKeyRef": {"name": "none", "key": "K"}}, 'configmap "none" not found'),
        ({"secretKeyRef": {"name": "s", "key": "Z"}}, "couldn't find key Z in Secret n/s"),
        ({"configMapKeyRef": {"name": "c", "key": "Z"}}, "couldn't find key Z in ConfigMap n/c"),
        ({"fieldRef": {"fieldPath": "spec.nonsense"}}, "unsupported fieldPath: spec.nonsense"),
        ({"fileKeyRef": {}}, "env V: unsupported valueFrom"),
    ],
)
def test_missing_sources_are_named(value_from, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        env({"name": "V", "valueFrom": value_from})


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("metadata.name", "p"),
        ("metadata.namespace", "n"),
        ("metadata.uid", "u"),
        ("metadata.labels['a']", "1"),
        ("metadata.annotations['none']", ""),
        ("metadata.labels", 'a="1"\nb="say \\"hi\\""'),
        ("metadata.annotations", 'x="line\\nbreak"'),
        ("spec.nodeName", "node"),
        ("spec.serviceAccountName", "sa"),
        ("status.hostIP", "127.1.0.2"),
        ("status.podIPs", "127.1.2.3"),
    ],
)
def test_field_references(path: str, expected: str) -> None:
    assert field_value(path, FACTS) == expected


def test_resources_default_to_the_node() -> None:
    assert resource_value({"resource": "limits.cpu"}, {}, FACTS) == "8"
    assert resource_value({"resource": "requests.cpu"}, {}, FACTS) == "0"


def test_commands_come_from_the_pod_then_from_the_image() -> None:
    image = Image("i", command=("prog",), args=("--default",))
    assert container_argv({"command": ["$(A)"], "args": ["b"]}, image, {"A": "x"}) == ["x", "b"]
    assert container_argv({"command": ["a"]}, image, {}) == ["a"]
    assert container_argv({"args": ["b"]}, image, {}) == ["prog", "b"]
    assert container_argv({}, image, {}) == ["prog", "--default"]


def test_references_are_found() -> None:
    container = {
        "env": [{"name": "a", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
        "envFrom": [{"configMapRef": {"name": "c"}}],
    }
    assert referenced_objects(container) == {("secrets", "s"), ("configmaps", "c")}


@pytest.mark.parametrize(
    ("text", "divisor", "expected"),
    [("1500m", "1", "2"), ("1500m", "1m", "1500"), ("1Gi", "1Mi", "1024"), ("2", "0", "2"),
     ("1e3", "", "1000"), ("100M", "1k", "100000")],
)  # fmt: skip
def test_quantities_are_divided_upwards(text: str, divisor: str, expected: str) -> None:
    assert divide_quantity(text, divisor) == expected


def test_wrong_quantities_are_named() -> None:
    with pytest.raises(SpecError, match="memory: '4GB' is not a quantity"):
        parse_quantity("4GB", "memory")
    with pytest.raises(SpecError, match="cpu: '1e999999999' is not a quantity"):
        parse_quantity("1e999999999", "cpu")


def test_a_container_is_told_that_its_gpu_is_simulated() -> None:
    asks = {"resources": {"limits": {"nvidia.com/gpu": 1, "cpu": 1}}}
    assert simulated_devices(asks) == {"SIMULATED_DEVICES": "nvidia.com/gpu"}
    for other in ({}, {"resources": None}, {"resources": {"limits": {"cpu": 1}}}):
        assert simulated_devices(other) == {}
