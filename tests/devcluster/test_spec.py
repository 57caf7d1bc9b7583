"""User input and the errors about it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bamboo_devcluster.__main__ import main
from bamboo_devcluster.errors import SpecError
from bamboo_devcluster.spec import ImageMap, NodeSpec, Taint, spread_nodes


def test_a_node_spec_survives_json() -> None:
    spec = NodeSpec("a", labels={"k": "v"}, taints=(Taint("t", "NoExecute", "x"),))
    assert NodeSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_labels_of_a_node() -> None:
    labels = NodeSpec("a", zone="z", spot=False, labels={"nvidia.com/gpu.count": "9"}).all_labels()
    assert labels["karpenter.sh/capacity-type"] == "on-demand"
    assert labels["topology.kubernetes.io/zone"] == "z"
    assert labels["nvidia.com/gpu.count"] == "9", "the user's labels win"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NodeSpec("No_Name"), "node.name: 'No_Name' must be lower case"),
        (lambda: NodeSpec("a", gpus=-1), "node.gpus: -1 is negative"),
        (lambda: NodeSpec("a", cpu="lots"), "node.cpu: 'lots' is not a quantity"),
        (lambda: NodeSpec("a", memory=""), "node.memory: '' is not a quantity"),
        (lambda: NodeSpec("a", memory="-3"), "node.memory: -3 is negative; give 0 or more"),
        (lambda: NodeSpec.from_json({"name": "a", "gpu": 1}), "node.gpu: no such field"),
        (lambda: NodeSpec.from_json({"zone": "a"}), "node.name: is missing"),
        (lambda: Taint("k", "Never"), "taint.effect: 'Never' is not one of NoSchedule"),
        (lambda: Taint.parse("key"), "taint: 'key' is not of the form"),
        (lambda: spread_nodes(-1, ["a"]), "nodes: -1 is negative"),
        (lambda: spread_nodes(1, [""]), "zones: give at least one zone"),
        (
            lambda: spread_nodes(2, ["b", "a", "a"]),
            "zones: 'a' is given twice in --zones; name each zone once",
        ),
        (lambda: spread_nodes(2, ["a", " a"]), "node.zone: ' a' must be at most 63 letters"),
        (lambda: NodeSpec("a", region="r" * 64), f"node.region: '{'r' * 64}' must be"),
    ],
)
def test_errors_name_the_field(make, message) -> None:
    with pytest.raises(SpecError) as caught:
        make()
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--zones", "a,a"], "zones: 'a' is given twice in --zones; name each zone once"),
        (["--label", "k=1", "--label", "k=2"], "label: 'k' is given twice; give one --label"),
        (["--taint", "k=1:NoSchedule", "--taint", "k:NoSchedule"], "taint: 'k' with NoSchedule is"),
    ],
)
def test_duplicate_options_start_nothing(tmp_path: Path, words: list[str], message: str) -> None:
    done = CliRunner().invoke(main, ["up", "--dir", str(tmp_path / "c"), *words])
    assert (done.exit_code, done.output.count("\n")) == (1, 1)
    assert done.output.startswith(f"Error: {message}")
    assert not (tmp_path / "c").exists()


def test_taints_are_parsed() -> None:
    assert Taint.parse("spot=true:NoSchedule") == Taint("spot", "NoSchedule", "true")
    assert Taint.parse("spot:NoExecute") == Taint("spot", "NoExecute", "")


def test_nodes_are_distributed_over_zones() -> None:
    nodes = spread_nodes(4, ["a", "b", "c"], gpus=2)
    assert [(n.name, n.zone, n.gpus) for n in nodes] == [
        ("node-1", "a", 2), ("node-2", "b", 2), ("node-3", "c", 2), ("node-4", "a", 2),
    ]  # fmt: skip


def test_the_first_matching_image_wins(tmp_path: Path) -> None:
    path = tmp_path / "images.yaml"
    path.write_text(
        "images:\n"
        "- {image: 'shop:*', command: [python, -m, shop], env: {PORT: 80}, workingDir: /srv}\n"
        "- {image: '*', command: [sh], args: [-c, 'true']}\n"
    )
    images = ImageMap.load(path)
    shop, other = images.find("shop:v1"), images.find("example.org/other@sha256:00")
    assert shop is not None
    assert (shop.command, shop.env, shop.working_dir) == (("python", "-m", "shop"), {"PORT": "80"},
                                                          "/srv")  # fmt: skip
    assert other is not None
    assert other.args == ("-c", "true")
    assert ImageMap().find("x") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("images: {}", "images: .* must contain a list"),
        ("[]", "images: .* must contain a list"),
        ("images: [{command: [a]}]", r"images\[0\]: must be a mapping with the key `image`"),
        ("images: [{image: a, cmd: [a]}]", r"images\[0\].cmd: no such field"),
        ("images: [{image: a, command: a}]", r"images\[0\].command: must be a list"),
        ("images: [{image: a, env: [a]}]", r"images\[0\].env: must be a mapping"),
        ("images: [{image: a, user: root}]", r"images\[0\].user: 'root' is no UID or UID:GID"),
        ("images: [", "images: .* is not YAML"),
    ],
)
def test_wrong_image_maps_name_the_field(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "images.yaml"
    path.write_text(text)
    with pytest.raises(SpecError, match=message):
        ImageMap.load(path)


def test_a_missing_image_map_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"images: cannot read .*images.yaml: No such file"):
        ImageMap.load(tmp_path / "images.yaml")


@pytest.mark.parametrize("content", [b"\xcb\xff", b"images: [\n\n", b"a: \0"])
def test_an_image_map_that_is_not_yaml_is_a_one_line_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "images.yaml").write_bytes(content)
    with pytest.raises(SpecError, match=r"images: .*images.yaml is not YAML: [^\n]*; correct it\Z"):
        ImageMap.load(tmp_path / "images.yaml")
