"""Which nodes can take a pod, and how many."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo_core.api.spec import OnDemandSpec, PlacementSpec, PoolSpec, WorkerSpec
from bamboo_core.placement import fitting
from bamboo_core.placement.fitting import Place

GPU = "nvidia.com/gpu"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def asks(**amounts: str) -> dict[str, Any]:
    return {"resources": {"requests": amounts}}


def needs_of(worker: WorkerSpec, *pools: PoolSpec) -> fitting.Needs:
    return fitting.needs(worker, PlacementSpec(pools=pools))


def wanted(**template: Any) -> fitting.Needs:
    return needs_of(WorkerSpec("i", {"limits": {GPU: 1}}, pod_template={"spec": template}))


def place(*taints: Any, **labels: str) -> Place:
    return Place("n", "a", labels, taints)


def affinity(*terms: Any) -> dict[str, Any]:
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}


def rule(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


@pytest.mark.parametrize(
    ("pod", "cpu"),
    [
        ({"containers": [asks(cpu="1"), asks(cpu="500m")]}, 1.5),
        ({"containers": [{"resources": {"limits": {"cpu": "2"}}}]}, 2),
        ({"containers": [asks(cpu="1")], "initContainers": [asks(cpu="3"), asks(cpu="2")]}, 3),
        ({"containers": [asks(cpu="1")],
          "initContainers": [asks(cpu="1") | {"restartPolicy": "Always"}, asks(cpu="2")]}, 3),
        ({"containers": [asks(cpu="2")],
          "initContainers": [asks(cpu="1") | {"restartPolicy": "Always"}]}, 3),
        ({"containers": [asks(cpu="1")], "overhead": {"cpu": "250m"}}, 1.25),
        ({"containers": [asks(cpu="1"), asks(cpu="1")], **asks(cpu="5")}, 5),
        ({"containers": [asks(cpu="many"), "nonsense", asks(cpu="1")]}, 1),
        ({"containers": [asks(cpu="1500u"), asks(cpu="1n")]}, 0.003),
        ({"containers": [asks(cpu="-8"), asks(cpu="1")], "overhead": {"cpu": "-1"}}, 1),
    ],
)  # fmt: skip
def test_what_a_pod_takes(pod: dict[str, Any], cpu: float) -> None:
    assert fitting.requests(pod) == {"cpu": cpu * fitting.ONE, "pods": fitting.ONE}


def test_an_agent_takes_what_its_whole_pod_takes() -> None:
    side = {"name": "side", **asks(cpu="1")}
    own = {"name": "agent", **asks(cpu="9")}
    needs = wanted(containers=[own, side])
    assert needs.asks == {GPU: fitting.ONE, "cpu": fitting.ONE, "pods": fitting.ONE}
    template = {"spec": {"containers": [own, side]}}
    assert needs_of(WorkerSpec("i", pod_template=template)).asks["cpu"] == 10 * fitting.ONE


@pytest.mark.parametrize(
    ("taint", "tolerations", "is_open"),
    [
        ({"key": "team", "value": "x", "effect": "NoSchedule"}, [], False),
        ({"key": "team", "value": "x", "effect": "NoExecute"}, [], False),
        ({"key": "team", "effect": "PreferNoSchedule"}, [], True),
        ({"key": "team", "value": "x", "effect": "NoSchedule"}, [{"operator": "Exists"}], True),
        ({"key": "team", "value": "x", "effect": "NoSchedule"}, [{"value": "x"}], False),
        ({"key": "team", "value": "x", "effect": "NoSchedule"},
         [{"key": "team", "operator": "Exists"}], True),
        ({"key": "team", "value": "x", "effect": "NoSchedule"},
         [{"key": "team", "value": "x", "effect": "NoSchedule"}], True),
        ({"key": "team", "value": "x", "effect": "NoSchedule"},
         [{"key": "team", "value": "y"}], False),
        ({"key": "team", "value": "x", "effect": "NoExecute"},
         [{"key": "team", "value": "x", "effect": "NoSchedule"}], False),
        # as the admission of some clouds does
        ({"key": GPU, "value": "present", "effect": "NoSchedule"}, [], True),
    ],
)  # fmt: skip
def test_taints(taint: dict[str, str], tolerations: list[dict[str, str]], is_open: bool) -> None:
    found = fitting.mismatch(wanted(tolerations=tolerations), place(taint))
    assert (not found) is is_open
    if not is_open:
        assert found.startswith("taint team")


def test_labels() -> None:
    needs = wanted(nodeSelector={"gpu": "a100"})
    assert fitting.mismatch(needs, place()) == "no label gpu=a100"
    assert fitting.mismatch(needs, place(gpu="a100")) == ""


def test_labels_of_on_demand_nodes_take_the_place_of_the_pools() -> None:
    """Only if the job prefers spot nodes; spot nodes need the pool's labels then."""
    pools = (PoolSpec(("a",), {"pool": "spot"}),)
    rule = OnDemandSpec(node_selector={"pool": "plain"})
    needs = fitting.needs(WorkerSpec("i"), PlacementSpec(pools=pools, on_demand=rule))
    spot_label = {"bamboo.dev/spot": "true"}
    assert fitting.mismatch(needs, place(pool="plain")) == ""
    assert fitting.mismatch(needs, place(pool="spot")) == "no label pool=plain"
    assert fitting.mismatch(needs, place(pool="spot", **spot_label)) == ""
    assert fitting.mismatch(needs, place(pool="plain", **spot_label)) == "no label pool=spot"


def test_labels_of_the_pool_in_its_zones_only() -> None:
    needs = needs_of(WorkerSpec("i"), PoolSpec(("a",), {"pool": "x"}), PoolSpec(("b",)))
    assert fitting.mismatch(needs, place()) == "no label pool=x"
    assert fitting.mismatch(needs, place(pool="x")) == ""
    assert fitting.mismatch(needs, Place("n", "b", {}, ())) == ""


@pytest.mark.parametrize(
    ("rule_", "is_met"),
    [
        (rule("a", "In", "1", "5"), True),
        (rule("a", "In", "1"), False),
        (rule("a", "NotIn", "1"), True),
        (rule("b", "NotIn", "1"), True),
        (rule("a", "Exists"), True),
        (rule("b", "Exists"), False),
        (rule("b", "DoesNotExist"), True),
        (rule("a", "Gt", "4"), True),
        (rule("a", "Lt", "5"), False),
        (rule("a", "Gt", "x"), False),
        (rule("b", "Gt", "4"), False),
        (rule("a", "Like", "5"), False),
        (rule("b", "In") | {"values": "x"}, False),
    ],
)
def test_rules_of_the_node_affinity(rule_: dict[str, Any], is_met: bool) -> None:
    needs = wanted(affinity=affinity({"matchExpressions": [rule_]}))
    assert (fitting.mismatch(needs, place(a="5")) == "") is is_met
    either = wanted(affinity=affinity({"matchExpressions": [rule_]}, {"matchFields": [
        rule("metadata.name", "In", "n")]}))  # fmt: skip
    assert fitting.mismatch(either, place(a="5")) == ""
    neither = wanted(affinity=affinity({}))
    assert fitting.mismatch(neither, place(a="5")) != "", "a term without rules matches nothing"


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["key", "operator", "values", "nodeAffinity", REQUIRED, "effect",
                         "nodeSelectorTerms", "matchExpressions", "requests", "limits", "cpu"]),
        inner, max_size=3,
    ),
    max_leaves=12,
)  # fmt: skip


@given(_JSON, _JSON, _JSON)
def test_nonsense_raises_nothing(one: Any, two: Any, three: Any) -> None:
    """The API server refuses a pod made from it, and that is shown."""
    fitting.requests({"containers": one, "initContainers": two, "overhead": three})
    affinity = one if isinstance(one, dict) else {}
    rules = [x for x in (two, three) if isinstance(x, dict)]
    found = wanted(affinity=affinity, tolerations=rules)
    taints = [x for x in (one, two) if isinstance(x, dict)]
    assert isinstance(fitting.mismatch(found, place(*taints)), str)


@given(
    st.dictionaries(st.sampled_from("xyz"), st.integers(0, 5)),
    st.dictionaries(st.sampled_from("xyz"), st.integers(0, 20)),
)
def test_room_is_the_largest_number_that_fits(each: dict[str, int], left: dict[str, int]) -> None:
    count, scarce = fitting.room(each, left)
    if not scarce:
        assert not any(each.values())
        return
    assert all(count * n <= left.get(name, 0) for name, n in each.items())
    assert (count + 1) * each[scarce] > left.get(scarce, 0)
