"""Contents that a pod template must not have."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.controller.builders import JOB, manifest, spec

from bamboo_core.api.spec import WorkerSpec
from bamboo_core.controller.reconcile import CreatePod
from bamboo_core.controller.view import Slot
from bamboo_core.validation.pod_rules import RESTRICTED, PodRules
from bamboo_core.validation.pod_template import _LISTS, label_problems, problems
from bamboo_core.validation.reading import from_manifest
from bamboo_operator.pods import manifests

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


@pytest.mark.parametrize(
    ("template", "field"),
    [
        ({"kind": "Pod"}, "t.kind"),
        ({"spec": []}, "t.spec"),
        ({"metadata": None}, "t.metadata"),
        ({"metadata": {"labels": "x"}}, "t.metadata.labels"),
        ({"metadata": {"annotations": {"a": 5}}}, "t.metadata.annotations.a"),
        ({"spec": {"nodeSelector": "x"}}, "t.spec.nodeSelector"),
        ({"spec": {"securityContext": None}}, "t.spec.securityContext"),
        ({"spec": {"affinity": []}}, "t.spec.affinity"),
        ({"spec": {"restartPolicy": "Always"}}, "t.spec.restartPolicy"),
        ({"spec": {"nodeName": "n"}}, "t.spec.nodeName"),
        ({"spec": {"volumes": "v"}}, "t.spec.volumes"),
        ({"spec": {"volumes": [{"emptyDir": {}}]}}, "t.spec.volumes[0].name"),
        ({"spec": {"containers": [{"image": "i"}]}}, "t.spec.containers[0].name"),
        ({"spec": {"containers": [{"name": 5}]}}, "t.spec.containers[0].name"),
        (
            {"spec": {"containers": [{"name": "x", "securityContext": "x"}]}},
            "t.spec.containers[0].securityContext",
        ),
        ({"spec": {"containers": [{"name": "x", "env": 5}]}}, "t.spec.containers[0].env"),
        ({"spec": {"containers": [{"name": "x", "env": ["A"]}]}}, "t.spec.containers[0].env"),
        (
            {"spec": {"containers": [{"name": "x", "env": [{"value": "v"}]}]}},
            "t.spec.containers[0].env[0].name",
        ),
        (
            {"spec": {"containers": [{"name": "x", "env": [{"name": ["v"]}]}]}},
            "t.spec.containers[0].env[0].name",
        ),
        (
            {"spec": {"volumes": [{"name": "bamboo-identity", "emptyDir": {}}]}},
            "t.spec.volumes[0].name",
        ),
        *(
            (
                {"spec": {"containers": [{"name": "agent", "volumeMounts": [{"mountPath": at}]}]}},
                "t.spec.containers[0].volumeMounts[0].mountPath",
            )
            for at in ("/var/run/bamboo", "/var//run/bamboo/", "/var/run/bamboo/more")
        ),
        (
            {"spec": {"containers": [{"name": "agent", "volumeMounts": {}}]}},
            "t.spec.containers[0].volumeMounts",
        ),
        ({"spec": {"affinity": {"nodeAffinity": "x"}}}, "t.spec.affinity.nodeAffinity"),
        ({"spec": {"affinity": {"podAntiAffinity": 5}}}, "t.spec.affinity.podAntiAffinity"),
        (
            {"spec": {"affinity": {"podAntiAffinity": {REQUIRED: 5}}}},
            f"t.spec.affinity.podAntiAffinity.{REQUIRED}",
        ),
        (
            {"spec": {"affinity": {"nodeAffinity": {REQUIRED: [1]}}}},
            f"t.spec.affinity.nodeAffinity.{REQUIRED}",
        ),
        (
            {"spec": {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [1]}}}}},
            f"t.spec.affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms",
        ),
        (
            {
                "spec": {
                    "affinity": {
                        "nodeAffinity": {
                            REQUIRED: {"nodeSelectorTerms": [{}, {"matchFields": {"a": 1}}]}
                        }
                    }
                }
            },
            f"t.spec.affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms[1].matchFields",
        ),
        (
            {"spec": {"containers": [{"name": "x", "securityContext": {"capabilities": "x"}}]}},
            "t.spec.containers[0].securityContext.capabilities",
        ),
        (
            {"spec": {"initContainers": [{"name": "x", "env": [{"name": "BAMBOO_JOB"}]}]}},
            "t.spec.initContainers[0].env[0].name",
        ),
        ({"metadata": {"labels": {"a b": "1"}}}, "t.metadata.labels"),
        ({"metadata": {"labels": {"a": "b c"}}}, "t.metadata.labels.a"),
        ({"metadata": {"annotations": {"a b": "any text!"}}}, "t.metadata.annotations"),
        ({"spec": {"nodeSelector": {"x y": "1"}}}, "t.spec.nodeSelector"),
        ({"spec": {"nodeSelector": {"x": "b@d value!"}}}, "t.spec.nodeSelector.x"),
    ],
)
def test_refused(template: dict[str, Any], field: str) -> None:
    assert [problem.field for problem in problems(template, path="t")] == [field]


def on_spec(**fields: Any) -> dict[str, Any]:
    return {"spec": fields}


def on_pod(**fields: Any) -> dict[str, Any]:
    return on_spec(securityContext=fields)


def on_container(**fields: Any) -> dict[str, Any]:
    return on_spec(containers=[{"name": "x", "image": "i"} | fields])


def on_security(**fields: Any) -> dict[str, Any]:
    return on_container(securityContext=fields)


def on_volume(**source: Any) -> dict[str, Any]:
    return on_spec(volumes=[{"name": "v"} | source])


def on_projected(**source: Any) -> dict[str, Any]:
    return on_volume(projected={"sources": [source]})


_ARMOR = "container.apparmor.security.beta.kubernetes.io/agent"
_C, _V = "t.spec.containers[0]", "t.spec.volumes[0]"
_SOURCE = f"{_V}.projected.sources[0]"
_UNSAFE: list[tuple[dict[str, Any], str]] = [
    (on_spec(hostIPC=True), "t.spec.hostIPC"),
    (on_spec(hostNetwork=True), "t.spec.hostNetwork"),
    (on_spec(hostPID=True), "t.spec.hostPID"),
    (on_spec(serviceAccountName="admin"), "t.spec.serviceAccountName"),
    (on_spec(serviceAccountName=["admin"]), "t.spec.serviceAccountName"),
    (on_spec(serviceAccountName=0), "t.spec.serviceAccountName"),
    (on_spec(serviceAccount="admin"), "t.spec.serviceAccount"),
    (on_spec(automountServiceAccountToken=True), "t.spec.automountServiceAccountToken"),
    (on_spec(priorityClassName="system-node-critical"), "t.spec.priorityClassName"),
    (on_spec(tolerations=[{"operator": "Exists"}]), "t.spec.tolerations[0].key"),
    (
        on_spec(tolerations=[{"key": "node-role.kubernetes.io/control-plane"}]),
        "t.spec.tolerations[0].key",
    ),
    (on_spec(somethingNew={"a": 1}), "t.spec.somethingNew"),
    ({"metadata": {"finalizers": ["x"]}}, "t.metadata.finalizers"),
    ({"metadata": {"annotations": {_ARMOR: "unconfined"}}}, f"t.metadata.annotations.{_ARMOR}"),
    *(
        ({"metadata": {"annotations": {name: "x"}}}, f"t.metadata.annotations.{name}")
        for name in (
            "iam.amazonaws.com/role",
            "sidecar.istio.io/userVolumeMount",
            "sidecar.istio.io/proxyImage",
            "k8s.v1.cni.cncf.io/networks",
            "v1.multus-cni.io/default-network",
            "cdi.k8s.io/gpu",
            "io.kubernetes.cri-o.Devices",
            "io.katacontainers.config.hypervisor.path",
        )
    ),
    ({"metadata": {"labels": {"aadpodidbinding": "x"}}}, "t.metadata.labels.aadpodidbinding"),
    (on_pod(runAsUser=0), "t.spec.securityContext.runAsUser"),
    (on_pod(runAsGroup=0), "t.spec.securityContext.runAsGroup"),
    (on_pod(fsGroup=0), "t.spec.securityContext.fsGroup"),
    (on_pod(supplementalGroups=[5, 0]), "t.spec.securityContext.supplementalGroups"),
    (on_security(runAsGroup=0), f"{_C}.securityContext.runAsGroup"),
    (on_pod(runAsUser="0"), "t.spec.securityContext.runAsUser"),
    (on_pod(runAsNonRoot=False), "t.spec.securityContext.runAsNonRoot"),
    (on_pod(sysctls=[{"name": "a", "value": "b"}]), "t.spec.securityContext.sysctls"),
    (on_pod(seLinuxOptions={"type": "spc_t"}), "t.spec.securityContext.seLinuxOptions"),
    (on_pod(seccompProfile={"type": "Unconfined"}), "t.spec.securityContext.seccompProfile.type"),
    (on_security(runAsUser=0), f"{_C}.securityContext.runAsUser"),
    (on_security(runAsNonRoot=False), f"{_C}.securityContext.runAsNonRoot"),
    (on_security(privileged=True), f"{_C}.securityContext.privileged"),
    (on_security(procMount="Unmasked"), f"{_C}.securityContext.procMount"),
    (on_security(windowsOptions={"hostProcess": True}), f"{_C}.securityContext.windowsOptions"),
    (
        on_security(allowPrivilegeEscalation=True),
        f"{_C}.securityContext.allowPrivilegeEscalation",
    ),
    (
        on_security(capabilities={"add": ["SYS_ADMIN"]}),
        f"{_C}.securityContext.capabilities.add",
    ),
    (on_security(capabilities={"drop": []}), f"{_C}.securityContext.capabilities.drop"),
    (on_security(capabilities={"drop": ["NET_RAW"]}), f"{_C}.securityContext.capabilities.drop"),
    (
        on_security(appArmorProfile={"type": "Unconfined"}),
        f"{_C}.securityContext.appArmorProfile.type",
    ),
    (on_container(ports=[{"containerPort": 1, "hostPort": 1}]), f"{_C}.ports[0].hostPort"),
    (on_container(ports=[{"containerPort": 1, "hostIP": "::1"}]), f"{_C}.ports[0].hostIP"),
    (on_container(volumeDevices=[{"name": "v"}]), f"{_C}.volumeDevices"),
    (on_container(envFrom=[{"secretRef": {"name": "s"}}]), f"{_C}.envFrom[0].secretRef.name"),
    (
        on_container(env=[{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s"}}}]),
        f"{_C}.env[0].valueFrom.secretKeyRef.name",
    ),
    (on_container(env=[{"name": "A", "valueFrom": {"x": 1}}]), f"{_C}.env[0].valueFrom.x"),
    (
        on_container(livenessProbe={"httpGet": {"host": "10.0.0.1", "port": 80}}),
        f"{_C}.livenessProbe.httpGet.host",
    ),
    (
        on_container(lifecycle={"preStop": {"tcpSocket": {"host": "10.0.0.1", "port": 80}}}),
        f"{_C}.lifecycle.preStop.tcpSocket.host",
    ),
    (on_volume(hostPath={"path": "/"}), f"{_V}.hostPath"),
    (on_volume(nfs={"server": "s", "path": "/"}), f"{_V}.nfs"),
    (on_volume(secret={"secretName": "db"}), f"{_V}.secret.secretName"),
    (on_volume(secret={"name": "bamboo-job-a"}), f"{_V}.secret.secretName"),
    (on_volume(csi={"driver": "d"}), f"{_V}.csi.driver"),
    (on_projected(secret={"name": "db"}), f"{_SOURCE}.secret.name"),
    (on_projected(serviceAccountToken={"path": "t"}), f"{_SOURCE}.serviceAccountToken"),
    (on_projected(podCertificate={"a": 1}), f"{_SOURCE}.podCertificate"),
]  # fmt: skip


@pytest.mark.parametrize(("template", "field"), _UNSAFE, ids=[field for _, field in _UNSAFE])
def test_what_gives_the_node_or_a_secret_away_is_refused(
    template: dict[str, Any], field: str
) -> None:
    (problem,) = problems(template, path="t")
    assert problem.field == field
    assert any(word in problem.message for word in ("remove it", "use one", "name the", "choose"))
    assert problems(template, path="t", rules=PodRules(trusted=True)) == []


@pytest.mark.parametrize("names", [{"namespaceSelector": {}}, {"namespaces": ["victim"]}])
@pytest.mark.parametrize("kind", ["podAffinity", "podAntiAffinity"])
@pytest.mark.parametrize("way", [REQUIRED, PREFERRED])
def test_no_rule_reaches_pods_of_other_namespaces(
    names: dict[str, Any], kind: str, way: str
) -> None:
    """The scheduler keeps their pods away from the job's, as it does the other way round."""
    plain: dict[str, Any] = {"labelSelector": {}, "topologyKey": "kubernetes.io/hostname"}

    def template(more: dict[str, Any]) -> dict[str, Any]:
        terms = [plain, plain | more]
        weighted = [{"weight": 1, "podAffinityTerm": term} for term in terms]
        return on_spec(affinity={kind: {way: terms if way == REQUIRED else weighted}})

    (key,) = names
    (problem,) = problems(template(names), path="t")
    term = "" if way == REQUIRED else ".podAffinityTerm"
    assert problem.field == f"t.spec.affinity.{kind}.{way}[1]{term}.{key}"
    assert "reaches pods of other namespaces; remove it" in problem.message
    assert problems(template(names), path="t", rules=PodRules(trusted=True)) == []
    assert problems(template({}), path="t") == []


JUNK_TERMS: tuple[Any, ...] = ("x", 5, {"a": 1}, [None], ["x"], [{"podAffinityTerm": "x"}])


@pytest.mark.parametrize("value", JUNK_TERMS)
def test_rules_of_a_wrong_type_are_left_to_the_api_server(value: Any) -> None:
    assert problems(on_spec(affinity={"podAffinity": value}), path="t") == []
    for way in (REQUIRED, PREFERRED):
        assert problems(on_spec(affinity={"podAffinity": {way: value}}), path="t") == []


def test_a_secret_in_the_environment_of_the_worker_is_refused() -> None:
    def found(name: str, rules: PodRules = RESTRICTED) -> Any:
        source = {"secretKeyRef": {"name": name, "key": "k"}}
        env = [{"name": "A", "value": "b"}, {"name": "B", "valueFrom": source}]
        return from_manifest(manifest(worker={"image": "i", "env": env}), rules=rules)

    (problem,) = found("db")
    assert problem.field == "spec.worker.env[1].valueFrom.secretKeyRef.name"
    assert problem.message == (
        "is 'db', which is not offered to jobs; use one that the chart's value podTemplate.secrets"
        " names (bamboo-job-* by default)"
    )
    assert not isinstance(found("bamboo-job-s3"), list)
    assert not isinstance(found("db", PodRules(secrets=("db",))), list)
    assert not isinstance(found("db", PodRules(trusted=True)), list)


@pytest.mark.parametrize(
    ("variable", "words"),
    [
        ({"value": "b"}, "name: is required; set it"),
        ({"name": ["b"]}, "name: is ['b']; it must be a string"),
        ({"name": "BAMBOO_JOB"}, "name: 'BAMBOO_JOB' is reserved; choose one without BAMBOO_"),
    ],
)
def test_variables_of_the_worker_have_names(variable: dict[str, Any], words: str) -> None:
    for rules in (RESTRICTED, PodRules(trusted=True)):
        worker = {"image": "i", "env": [{"name": "A"}, variable]}
        found = from_manifest(manifest(worker=worker), rules=rules)
        assert isinstance(found, list)
        assert f"spec.worker.env[1].{words}" in "; ".join(map(str, found))


@pytest.mark.parametrize(
    ("template", "place", "wanted"),
    [
        (on_spec(automountServiceAccountToken=None), ["automountServiceAccountToken"], False),
        (on_pod(runAsNonRoot=None), ["securityContext", "runAsNonRoot"], True),
        (
            on_pod(seccompProfile=None),
            ["securityContext", "seccompProfile"],
            {"type": "RuntimeDefault"},
        ),
        (
            on_spec(containers=[{"name": "agent", "securityContext": None}]),
            ["containers", 0, "securityContext", "allowPrivilegeEscalation"],
            False,
        ),
        (
            on_security(allowPrivilegeEscalation=None),
            ["containers", 1, "securityContext", "allowPrivilegeEscalation"],
            False,
        ),
        (
            on_security(capabilities={"drop": None}),
            ["containers", 1, "securityContext", "capabilities"],
            {"drop": ["ALL"]},
        ),
        (on_spec(serviceAccountName=None), ["serviceAccountName"], "default"),
    ],
)
def test_null_is_as_if_the_field_were_not_there(
    template: dict[str, Any], place: list[Any], wanted: Any
) -> None:
    """It must not undo a default that keeps the job's rights small. The API server passes it on."""
    found = from_manifest(manifest(worker={"image": "i", "podTemplate": template}))
    assert not isinstance(found, list), found
    action = CreatePod("job-p0-s0-i0", Slot(0, 0), 0, "a")
    value = manifests.pod(found, JOB, action, operator_address="op:1")["spec"]
    for key in place:
        value = value[key]
    assert value == wanted


def test_what_is_offered_to_jobs_may_be_used() -> None:
    template = on_spec(
        serviceAccountName="bamboo-job-cloud",
        automountServiceAccountToken=True,
        volumes=[
            {"name": "a", "secret": {"secretName": "bamboo-job-s3"}},
            {"name": "b", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}},
            {"name": "c", "csi": {"driver": "fuse", "nodePublishSecretRef": {"name": "s3"}}},
        ],
    )
    rules = PodRules(secrets=("bamboo-job-*", "s3"), csi_drivers=("fuse",))
    assert problems(template, path="t", rules=rules) == []
    none = PodRules(secrets=(), service_accounts=())
    fields = [problem.field for problem in problems(template, path="t", rules=none)]
    assert fields == [
        "t.spec.serviceAccountName",
        "t.spec.automountServiceAccountToken",
        "t.spec.volumes[0].secret.secretName",
        "t.spec.volumes[1].projected.sources[0].serviceAccountToken",
        "t.spec.volumes[2].csi.driver",
        "t.spec.volumes[2].csi.nodePublishSecretRef.name",
    ]


def test_a_wrong_type_is_reported_with_value_and_remedy() -> None:
    (problem,) = problems({"spec": {"nodeSelector": "x"}}, path="t")
    assert problem.message == "is 'x'; it must be an object, or be left out"
    (problem,) = problems({"metadata": {"labels": {"version": 1}}}, path="t")
    assert problem.message == "is 1; it must be a string (in quotes), or be left out"
    (problem,) = problems({"metadata": {"labels": "x" * 5000}}, path="t")
    assert problem.message.endswith("...; it must be an object, or be left out")
    assert len(problem.message) < 150


_LONG = "a" * 63
_DNS = ".".join(["a" * 62] * 4) + "aa"


@pytest.mark.parametrize(
    "key", ["a", "A9", "a-b_c.d", _LONG, f"{_DNS}/{_LONG}", "b.dev/a", "1.2-3.x/0"]
)
def test_keys_of_labels(key: str) -> None:
    assert label_problems({key: ""}, path="t") == []


@pytest.mark.parametrize(
    "key",
    ["", "a b", "-a", "a.", "é", "a\n", _LONG + "a", "/a", "b/", "b/c/d", "B.dev/a", "b..c/a",
     "-b/a", "b_c/a", f"{_DNS}a/a"],
)  # fmt: skip
def test_what_is_no_key_of_a_label(key: str) -> None:
    (problem,) = label_problems({"good": "1", key: "1"}, path="t")
    assert problem == (
        "t",
        f"has the key {(repr(key) if len(key) < 79 else repr(key)[:80] + '...')}; a key has 1 to 63"
        " of A-Z, a-z, 0-9, '-', '_' and '.', and begins and ends with a letter or digit; before it"
        " may stand a DNS name of at most 253 characters and '/': correct it",
    )


@pytest.mark.parametrize("value", ["", "a", "A9", "a-b_c.d", "0", _LONG])
def test_values_of_labels(value: str) -> None:
    assert label_problems({"x": value}, path="t") == []


@pytest.mark.parametrize("value", ["b@d value!", "-a", "a_", ".", "é", "a\n", "a/b"])
def test_what_is_no_value_of_a_label(value: str) -> None:
    (problem,) = label_problems({"x": value}, path="t")
    assert problem == (
        "t.x",
        f"is {value!r}; it has at most 63 of A-Z, a-z, 0-9, '-', '_' and '.', and begins and ends"
        " with a letter or digit: correct it",
    )


def test_a_value_of_a_label_may_be_too_long() -> None:
    (problem,) = label_problems({"x": _LONG + "a"}, path="t")
    assert str(problem) == "t.x: has 64 characters; at most 63 are allowed: shorten it"


def test_keys_of_annotations_may_have_capital_letters_in_the_domain() -> None:
    template = {"metadata": {"annotations": {"Example.COM/Note": "any text!"}}}
    assert problems(template, path="t") == []


@pytest.mark.parametrize(
    ("spec", "field", "other"),
    [
        ({"containers": [{"name": "agent"}, {"name": "agent"}]}, "containers[1]", "containers[0]"),
        ({"containers": [{"name": "b"}], "initContainers": [{"name": "a"}, {"name": "b"}]},
         "initContainers[1]", "containers[0]"),
        ({"initContainers": [{"name": "a"}, {"name": "a"}]},
         "initContainers[1]", "initContainers[0]"),
    ],
)  # fmt: skip
def test_two_containers_of_one_name_are_refused(
    spec: dict[str, Any], field: str, other: str
) -> None:
    """Once, a second container named agent was left out without a word."""
    for rules in (RESTRICTED, PodRules(trusted=True)):
        (problem,) = problems({"spec": spec}, path="t", rules=rules)
        assert problem.field == f"t.spec.{field}.name"
        assert problem.message.endswith(f"is the name of t.spec.{other} too; choose another name")


def test_the_name_of_the_agent_is_taken_without_its_container() -> None:
    (problem,) = problems(on_spec(initContainers=[{"name": "agent"}]), path="t")
    assert str(problem) == (
        "t.spec.initContainers[0].name: 'agent' is the name of the agent's own container too;"
        " choose another name"
    )


@pytest.mark.parametrize(
    ("template", "field", "meant"),
    [
        (
            on_spec(tolerationz=[{"key": "a"}]),
            "t.spec.tolerationz",
            "tolerations",
        ),
        (
            on_spec(nodeselector={"a": "b"}),
            "t.spec.nodeselector",
            "nodeSelector",
        ),
        (
            on_container(envv=[{"name": "A"}]),
            "t.spec.containers[0].envv",
            "env",
        ),
        (
            {"metadata": {"label": {"a": "b"}}},
            "t.metadata.label",
            "labels",
        ),
    ],
)
def test_of_a_misspelt_field_the_right_name_is_told(
    template: dict[str, Any], field: str, meant: str
) -> None:
    (problem,) = problems(template, path="t")
    assert str(problem) == (
        f"{field}: is not allowed in a pod template (do you mean {meant}?); remove it (where all"
        " users are trusted, the chart's value podTemplate.trusted allows it)"
    )


def test_a_container_beside_the_agents_needs_an_image() -> None:
    """Else a misspelt name of the agent's container would be a container of its own."""
    spec = {"containers": [{"name": "agnt"}], "initContainers": [{"name": "a"}]}
    assert [*map(str, problems({"spec": spec}, path="t"))] == [
        "t.spec.containers[0].image: is required; set it, or name the container 'agent' to extend"
        " the agent's own one",
        "t.spec.initContainers[0].image: is required; set it",
    ]
    trusted = PodRules(trusted=True)  # a webhook may set it
    assert problems({"spec": spec}, path="t", rules=trusted) == []


JUNK: tuple[Any, ...] = (None, 5, "x", [], {}, [5], [{}], {"name": None}, [{"name": []}], True)


@pytest.mark.parametrize("value", JUNK)
@pytest.mark.parametrize(
    "place",
    [
        ("metadata", "labels"),
        ("metadata", "annotations"),
        *(("spec", key) for key in (*_LISTS, "nodeSelector", "securityContext", "affinity")),
        *(
            ("spec", "containers", key)
            for key in ("env", "envFrom", "volumeMounts", "ports", "securityContext", "args")
        ),
    ],
)
def test_an_accepted_template_makes_a_pod(place: tuple[str, ...], value: Any) -> None:
    """Whatever the API server thinks of it: never an error of ours."""
    template: dict[str, Any] = {place[0]: {place[1]: value}}
    if len(place) == 3:
        template = {"spec": {"containers": [{"name": "agent", place[2]: value}]}}
    if problems(template, path="t"):
        return
    worker = WorkerSpec("agent:1", pod_template=template)
    made = manifests.pod(
        spec(worker=worker), JOB, CreatePod("job-p0-s0-i0", Slot(0, 0), 0, "a"),
        operator_address="op:1",
    )  # fmt: skip
    assert made["spec"]["containers"][0]["name"] == "agent"


def test_accepted() -> None:
    template = {
        "metadata": {"labels": {"team": "a"}},
        "spec": {
            "hostNetwork": False,
            "containers": [
                {"name": "agent", "volumeMounts": []},
                {"name": "sidecar", "image": "i"},
            ],
            "volumes": [{"name": "cache", "emptyDir": {}}],
            "tolerations": [{"key": "spot", "operator": "Exists"}],
        },
    }
    assert problems(template, path="t") == []
    assert problems({}, path="t") == []
