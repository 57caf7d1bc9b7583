"""`bamboo plan` and `bamboo profile`: what they print, and what they refuse."""

from __future__ import annotations

import gc
import io
import json
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from rich.console import Console
from tests.cli.profiles import LAYER, QUICKSTART, profile_of

from bamboo_cli.errors import CommandError
from bamboo_cli.estimate.manifest import read_manifest
from bamboo_cli.estimate.plan import as_json, plan_of
from bamboo_cli.estimate.profile import read_profile
from bamboo_cli.main import cli
from bamboo_cli.views.terminal.plan import plan_view, seconds, size
from bamboo_core.planning.displays import preview
from bamboo_core.planning.displays.preview import OneLoss
from bamboo_core.planning.requests import Bound, Comparison, StepTime
from bamboo_core.protection import facts
from bamboo_core.protection.choice import choose

VERSION = "apiVersion: bamboo.dev/v1alpha1"


def plan(file: Path = QUICKSTART, **options: Any) -> Any:
    usual = {
        "profile": None,
        "shape": None,
        "tflops": 0.01,
        "hazard": 0.05,
        "gbits": None,
        "memory": None,
        "restart_s": 60.0,
        "refill_s": 180.0,
        "stop_s": 1.0,
        "step_s": None,
    }
    return plan_of(file=file, **(usual | options))


def text(found: Any, width: int = 120) -> str:
    console = Console(width=width, file=io.StringIO())
    with console.capture() as captured:
        console.print(plan_view(found))
    return captured.get()


@pytest.fixture
def manifest() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(QUICKSTART.read_text())
    return found


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def to_file(content: Any, name: str = "job.yaml") -> Path:
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
        return path

    return to_file


# ---------------------------------------------------------------- the answer


def test_the_view_shows_grid_cut_schedule_modes_and_verdict() -> None:
    shown = text(plan(hazard=0.5))
    for part in (
        "quickstart: 2 pipelines x 4 stages, 8 agents, 8 micro-batches",
        "shape bamboo_agent.models.gpt:build at 0.01 TFLOP/s",
        "0-1",
        "schedule: a step takes",
        "0-0 | F0 F1 F2 F3",
        "spec.redundancy.mode is Auto; Auto takes Replica: with 3.9 losses an hour among 8 agents,",
    ):
        assert part in shown, shown
    assert [m for m in ("None", "Replica", "Eager") if f" {m} " not in shown] == []


def test_the_view_and_json_say_what_one_loss_would_cost_in_each_way() -> None:
    found = plan(gbits=1.0)
    shown, loss = text(found), as_json(found)["oneLoss"]
    assert (
        "without the agent of pipeline 1, stage 2, over 1 Gb/s (recovery.policy Auto; where"
        in shown
    )
    assert loss["ways"][0]["way"] == loss["taken"]
    assert all(f" {way['way']} " in shown for way in loss["ways"])
    assert min(way["stepSeconds"] for way in loss["ways"]) == loss["ways"][0]["stepSeconds"]
    assert loss["ways"][0]["stepSeconds"] > loss["usualSeconds"]
    slower = as_json(plan(gbits=0.1))["oneLoss"]
    assert slower["usualSeconds"] > loss["usualSeconds"]


def test_the_view_and_json_say_what_is_only_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    others = StepTime("Shadow", 3.0, Bound.LEAST), StepTime("Diffuse", 5.0, Bound.MOST)
    loss = OneLoss((1, 2), 2.0, Comparison(StepTime("Peers", 2.5), others))
    monkeypatch.setattr(preview, "one_loss", lambda *_, **__: loss)
    found = plan()
    rows = {x[0]: x[1:] for line in text(found).splitlines() if (x := line.split())}
    assert rows["Peers"] == ["2.5", "s", "1.25"]
    assert rows["Shadow"] == ["at", "least", "3", "s", "at", "least", "1.50"]
    assert rows["Diffuse"] == ["at", "most", "5", "s", "at", "most", "2.50"]
    assert as_json(found)["oneLoss"]["ways"] == [
        {"way": "Peers", "stepSeconds": 2.5, "atLeast": False, "atMost": False},
        {"way": "Shadow", "stepSeconds": 3.0, "atLeast": True, "atMost": False},
        {"way": "Diffuse", "stepSeconds": 5.0, "atLeast": False, "atMost": True},
    ]


@pytest.mark.parametrize("gbits", [0.1, 1.0, 100.0])
def test_a_step_is_as_long_in_the_schedule_as_in_the_table_of_one_loss(gbits: float) -> None:
    found = plan(gbits=gbits)
    usual_s = as_json(found)["oneLoss"]["usualSeconds"]
    assert as_json(found)["stepSeconds"] == usual_s
    shown = " ".join(text(found).split())
    assert f"schedule: a step takes {seconds(usual_s)};" in shown
    assert f"a step without a loss takes {seconds(usual_s)})" in shown


def test_a_step_counts_with_the_network_where_no_loss_can_be_compared(
    manifest: dict[str, Any], write: Any
) -> None:
    """A loss is fatal without copies in one pipeline, which adds up no sums with others."""
    manifest["spec"]["redundancy"] = {"mode": "None"}
    manifest["spec"]["pipelines"] = {"count": 1, "stages": 4}
    alone = write(manifest)
    one, slow = plan(alone, gbits=10.0), plan(alone, gbits=0.1)
    assert one.one_loss is None
    assert "in None nobody else has its layers" in text(one)
    assert one.step_s == slow.step_s > 0
    manifest["spec"]["redundancy"] = {"mode": "Replica"}
    copied = write(manifest, "copied.yaml")
    assert plan(copied, gbits=0.1).step_s > plan(copied, gbits=10.0).step_s


def test_a_grid_too_large_for_a_comparison_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bamboo_cli.estimate.plan._MOST_TASKS", 1)
    shown = " ".join(text(plan()).split())
    assert "what one loss costs is not shown: of 8 agents with 8 micro-batches each" in shown


def test_a_step_that_was_measured_is_shown_as_it_is() -> None:
    assert as_json(plan(step_s=2.0))["stepSeconds"] == 2.0
    assert "schedule: a step takes 2 s;" in text(plan(step_s=2.0))


def test_a_narrow_terminal_cuts_no_heading_or_size() -> None:
    shown = text(plan(memory="512Mi"), width=80)
    modes = shown.split("without the agent")[1]
    assert "overhead" in modes
    assert "\u2026" not in modes
    for mode in ("None", "Replica", "Eager"):
        (row,) = [x for x in modes.splitlines() if x.startswith(f" {mode} ")]
        assert row.split()[-3] == "MiB", row  # device and host, each with its unit
        assert row.split()[-1] == "B", row


def test_the_view_says_what_lanes_do_with_the_waits() -> None:
    """They also run before the first computation."""
    shown = " ".join(text(plan(tflops=0.1)).split())
    assert "an agent waits 3.37 ms. With Eager it would compute 2.83 ms of its" in shown, shown
    assert "in a step that is 0 s longer" in shown, shown


def test_the_drawing_is_of_the_schedule_that_the_planner_takes(write: Any) -> None:
    """Measured halves of a backward that cost as much as the whole are worth the split."""
    _, spec = read_manifest(QUICKSTART)

    def drawn(layer: dict[str, Any]) -> str:
        content = profile_of(spec, layers=[layer] * 8)
        found = text(plan(profile=write(json.dumps(content), "profile.json")))
        return "\n".join(line for line in found.splitlines() if line.startswith("0-"))

    assert {"I0", "W0"} <= set(drawn(LAYER).split())
    fused = drawn(LAYER | {"canSplit": False})
    assert "B0" in fused.split()
    assert "W0" not in fused.split()


def test_the_drawing_has_as_much_in_flight_as_the_device_has_room_for(write: Any) -> None:
    _, spec = read_manifest(QUICKSTART)
    path = write(json.dumps(profile_of(spec)), "profile.json")

    def first(memory: str | None) -> str:
        (row,) = [x for x in text(plan(profile=path, memory=memory)).splitlines() if "0-0 |" in x]
        return row

    unknown, roomy = first(None), first("64Gi")
    assert unknown.index("B0") < unknown.index("F4"), unknown
    assert roomy.index("F7") < roomy.index("B0"), roomy


def test_a_job_in_auto_is_drawn_in_the_mode_that_it_takes(
    manifest: dict[str, Any], write: Any
) -> None:
    manifest["spec"]["redundancy"] = {"mode": "Auto"}
    assert "0-3 |" in text(plan(write(manifest)))


def test_a_mode_that_the_manifest_asks_for_is_named_beside_that_of_auto(
    manifest: dict[str, Any], write: Any
) -> None:
    manifest["spec"]["redundancy"] = {"mode": "Eager"}
    shown = " ".join(text(plan(write(manifest), hazard=0.5)).split())
    assert "spec.redundancy.mode is Eager; Auto takes Replica: with" in shown


def test_a_large_grid_is_not_drawn(manifest: dict[str, Any], write: Any) -> None:
    manifest["spec"]["training"]["globalBatchSize"] = 128
    assert "F0" not in text(plan(write(manifest)))
    manifest["spec"]["training"]["globalBatchSize"] = 512
    manifest["spec"]["pipelines"] = {"count": 33, "stages": 2}
    assert "F0" not in text(plan(write(manifest)))
    manifest["spec"]["pipelines"]["count"] = 32
    assert "F0" in text(plan(write(manifest)))


def test_the_answer_is_that_of_auto(write: Any) -> None:
    _, spec = read_manifest(QUICKSTART)
    path = write(json.dumps(profile_of(spec)), "profile.json")
    found = plan(profile=path, hazard=0.2)
    costs = read_profile(path).layers
    seen = facts.Seen(0.2, are_costs_measured=True)
    expected = choose(facts.gather(spec, costs, seen, pipelines=spec.pipelines.count))
    assert found.verdict == expected


@pytest.mark.parametrize(("gbps", "mode"), [(10, "None"), (100, "Replica")])
def test_the_network_of_the_manifest_counts(
    gbps: float, mode: str, manifest: dict[str, Any], write: Any
) -> None:
    """Auto knows no other, so the answer would not be its answer."""
    manifest["spec"]["model"] = {"factory": "mine:model"}
    manifest["spec"]["pipelines"] = {"count": 1, "stages": 12}
    manifest["spec"]["training"] |= {"globalBatchSize": 256, "microBatchSize": 8}
    manifest["spec"]["transport"] = {"bandwidthGbps": gbps}
    path = write(manifest)
    asked = {"shape": "bert-large", "tflops": 50.0, "hazard": 0.05}
    found = plan(path, **asked)
    assert found.verdict.facts.bytes_per_s == gbps * 1e9 / 8
    assert found.verdict.mode.value == mode
    other = plan(path, gbits=5.0, **asked)
    assert other.verdict.facts.bytes_per_s == 5e9 / 8


def test_measured_figures_can_be_given() -> None:
    found = plan(step_s=2.0, stop_s=0.5).verdict.facts
    assert (found.step_s, found.stop_s) == (2.0, 0.5)


def test_json_has_the_whole_answer() -> None:
    done = CliRunner().invoke(cli, ["plan", "-f", str(QUICKSTART), "--json", "--hazard", "0.3"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert found["grid"] == {"pipelines": 2, "stages": 4, "agents": 8, "microBatches": 8}
    assert [stage["layers"] for stage in found["cut"]] == [[0, 2], [2, 4], [4, 6], [6, 8]]
    assert [mode["mode"] for mode in found["modes"]] == ["None", "Replica", "Eager"]
    assert found["auto"]["mode"] in ("None", "Replica", "Eager")
    assert found["auto"]["reason"]
    assert found["facts"]["hazard_per_agent_hour"] == 0.3
    assert found["facts"]["empty_share"] == pytest.approx(0.3 * 180 / 3654)
    assert found["facts"]["bare"]["degraded"] > 1
    assert found["modes"][0]["expectedStep"] > 1
    assert "steps" not in found["facts"]


def test_no_garbage_is_looked_for_while_a_job_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take half of the time."""
    runs: list[bool] = []

    def note(found: Any) -> Any:
        runs.append(gc.isenabled())
        return choose(found)

    monkeypatch.setattr("bamboo_cli.estimate.plan.choose", note)
    assert gc.isenabled()
    assert not CliRunner().invoke(cli, ["plan", "-f", str(QUICKSTART)]).exit_code
    assert not CliRunner().invoke(cli, ["plan", "-f", str(QUICKSTART), "--json"]).exit_code
    assert CliRunner().invoke(cli, ["plan", "-f", "missing.yaml"]).exit_code
    assert runs == [False, False]
    assert gc.isenabled()


def test_json_has_no_infinity(manifest: dict[str, Any], write: Any) -> None:
    manifest["spec"]["pipelines"] = {"count": 2, "stages": 1}
    manifest["spec"]["redundancy"] = {"mode": "None"}
    found = json.loads(json.dumps(as_json(plan(write(manifest))), allow_nan=False))
    assert found["modes"][1]["pauseSeconds"] is None
    assert "spec.pipelines.stages is 1" in found["modes"][1]["excluded"]


def test_a_known_shape_stands_for_any_model(manifest: dict[str, Any], write: Any) -> None:
    manifest["spec"]["model"] = {"factory": "mine:model"}
    found = plan(write(manifest), shape="bert-large")
    assert len(found.costs.layers) == 26
    parameters = sum(x.parameter_bytes for x in found.costs.layers) // 4
    assert parameters == pytest.approx(364e6, rel=0.03)  # 334 million, and an untied projection


def test_device_memory_excludes_modes() -> None:
    found = plan(memory="16Mi")
    assert found.verdict.facts.memory_bytes == 16 * 2**20
    assert "Replica cannot be used" in text(found)


@pytest.mark.parametrize("mode", ["Auto", "None", "Replica"])
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_job_that_does_not_fit_is_an_error(
    mode: str, options: list[str], manifest: dict[str, Any], write: Any
) -> None:
    manifest["spec"]["redundancy"] = {"mode": mode}
    command = ["plan", "-f", str(write(manifest)), "--memory", "1Mi", *options]
    done = CliRunner().invoke(cli, command)
    assert isinstance(done.exception, CommandError)
    said = str(done.exception)
    taken = ", and in None it needs " if mode == "Auto" else ", and it needs "
    assert said.startswith(f"quickstart does not fit: spec.redundancy.mode is {mode}{taken}")
    assert "and 80% of the device's 1 MiB can be used: raise spec.pipelines.stages" in said
    shown = json.loads(done.output)["shortage"] if options else " ".join(done.output.split())
    assert (said[:-1] == shown) if options else ("None does not fit: it needs" in shown)


@pytest.mark.parametrize(("mode", "is_short"), [("Auto", False), ("None", False), ("Eager", True)])
def test_a_job_whose_mode_fits_is_no_error(
    mode: str, is_short: bool, manifest: dict[str, Any], write: Any
) -> None:
    manifest["spec"]["redundancy"] = {"mode": mode, "hostMemory": "0"}
    found = plan(write(manifest), memory="19Mi")
    assert bool(found.shortage) is is_short


def test_a_short_device_sends_replicas_to_host_memory(write: Any) -> None:
    """16 times a stage's parameters do not fit after a loss, 14 times and twice a layer's do."""
    _, spec = read_manifest(QUICKSTART)
    path = write(json.dumps(profile_of(spec)), "profile.json")
    found = plan(profile=path, memory="26500000")
    (replica,) = [mode for mode in as_json(found)["modes"] if mode["mode"] == "Replica"]
    assert replica["excluded"] is None
    assert replica["replicaHostBytes"] == replica["hostBytes"] == 3 * 800_000
    boundaries, activations = 8 * 50_000, 4 * 2_000_000  # the first stage sends no gradient back
    # weight gradients are added to the running sum: they take no memory of their own
    assert replica["deviceBytes"] == 8 * 800_000 + 3 * 400_000 + activations + boundaries
    shown = " ".join(text(found).split())
    assert "Replica keeps replicas in host memory" in shown
    assert "so 2.29 MiB of weights and optimizer state wait there" in shown
    assert "Eager keeps" not in shown
    # 16 times 800,000, 5 activations, 16 boundary tensors and 8 outputs of forwards ahead
    tight = plan(profile=path, memory="30000000")
    assert [mode["aheadHostBytes"] for mode in as_json(tight)["modes"]] == [0, 0, 8 * 2_000_000]
    assert "Eager keeps what is computed ahead in host memory" in " ".join(text(tight).split())
    roomy = plan(profile=path, memory="1Gi")
    assert [mode["aheadHostBytes"] for mode in as_json(roomy)["modes"]] == [0, 0, 0]
    assert [mode["replicaHostBytes"] for mode in as_json(roomy)["modes"]] == [0, 0, 0]
    assert "keeps replicas" not in text(roomy)


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a: [", r"job\.yaml is not YAML: line 1, column 5: expected"),
        ("a: 1\nspec:\n\tmodel: 1", r"is not YAML: line 3, column 1: found character '\\t' that"),
        ("kind: Pod", "has 0 objects of kind BambooJob"),
        ("kind: BambooJob\n---\nkind: BambooJob", "has 2 objects of kind BambooJob"),
        (f"{VERSION}\nkind: BambooJob", "spec: is required"),
        ("kind: BambooJob", "apiVersion is None; it must be bamboo.dev/v1alpha1"),
        ("apiVersion: v1\nkind: BambooJob", "apiVersion is 'v1'; it must be bamboo.dev/v1alpha1"),
        ("[" * 1000, "is not YAML: maximum recursion depth"),
    ],
)
def test_a_file_without_a_usable_job_is_refused(write: Any, content: str, words: str) -> None:
    with pytest.raises(CommandError, match=words):
        plan(write(content))


@pytest.mark.parametrize("rate", ["3e-4", "3E-4", "+.3e-3", "3.e-4", "3.0e-4", "0.0003"])
def test_a_number_is_one_as_kubectl_reads_it(
    rate: str, manifest: dict[str, Any], tmp_path: Path
) -> None:
    manifest["spec"]["training"]["optimizer"]["args"] = {"lr": "RATE"}
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(manifest).replace("RATE", rate))
    _, spec = read_manifest(path)
    assert spec.training.optimizer.args == {"lr": 0.0003}


@pytest.mark.parametrize("text", ["3e", "e-4", "0x3e-4", "3e-4x", "'3e-4'", "v3e-4"])
def test_other_text_stays_text(text: str, manifest: dict[str, Any], tmp_path: Path) -> None:
    manifest["spec"]["training"]["optimizer"]["args"] = {"name": "TEXT"}
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(manifest).replace("TEXT", text))
    _, spec = read_manifest(path)
    assert spec.training.optimizer.args == {"name": text.strip("'")}


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"cannot read .*absent\.yaml: No such file"):
        plan(tmp_path / "absent.yaml")


def test_a_wrong_field_is_named(manifest: dict[str, Any], write: Any) -> None:
    manifest["spec"]["training"]["globalBatchSize"] = 33
    with pytest.raises(CommandError, match=r"spec\.training\.globalBatchSize: 33 is not a mult"):
        plan(write(manifest))


@pytest.mark.parametrize(
    ("part", "name", "known"),
    [
        ("runPolicy", "backofLimit", "ttlSecondsAfterFinished, .*backoffLimit, "),
        ("training", "onNonFinit", "steps, .*onNonFinite"),
        ("corruption", "sampel", "mode, sample"),
        ("recovery", "polic", "policy"),
    ],
)
def test_a_field_that_does_not_exist_is_named(
    part: str, name: str, known: str, manifest: dict[str, Any], write: Any
) -> None:
    """No API server refuses this file, and a default would take the place of what was meant."""
    manifest["spec"].setdefault(part, {})[name] = 1
    words = rf"spec\.{part}\.{name}: is not known; the fields of spec\.{part} are {known}"
    with pytest.raises(CommandError, match=words):
        plan(write(manifest))


@pytest.mark.parametrize(
    ("part", "fields", "words"),
    [
        ("pipelines", {"count": 2, "stages": 1}, "Replica keeps a copy of the next stage, but"),
        ("pipelines", {"count": 2, "stages": 4, "min": 3}, "min: 3 is more than count 2"),
        ("pipelines", {"count": 2, "stages": 4, "max": 1}, "count: 2 is more than max 1"),
        ("pipelines", {"count": 8, "stages": 200}, "count: 8 times stages 200 makes 1600 agents"),
        ("pipelines", {"count": 17, "stages": 4}, r"fewer than spec\.pipelines\.count 17: raise"),
        ("data", {"factory": "a:b"}, "there is no spec.data.validation: add it"),
        ("placement", {"zones": ["a"]}, 'spec.placement.zones names only "a": add a zone'),
        ("placement", {"zones": ["a", "b", "a"]}, 'zones: names "a" twice; name it once'),
        ("checkpoint", {"uri": "ftp://b"}, '"ftp://b" is not supported: use file:///path'),
    ],
)
def test_what_the_api_server_refuses_is_refused(
    part: str, fields: dict[str, Any], words: str, manifest: dict[str, Any], write: Any
) -> None:
    manifest["spec"]["redundancy"] = {"mode": "Replica"}
    manifest["spec"][part] = fields
    with pytest.raises(CommandError, match=words):
        plan(write(manifest))


@pytest.mark.parametrize("name", ["a.b", "a" * 41, "Job"])
def test_a_name_that_pods_could_not_have_is_refused(
    name: str, manifest: dict[str, Any], write: Any
) -> None:
    manifest["metadata"]["name"] = name
    with pytest.raises(CommandError, match=f'metadata.name: "{name}" must be a DNS label of at'):
        plan(write(manifest))


@pytest.mark.parametrize(
    ("zones", "stages", "words"),
    [
        ((["a"],), 4, "4 stages need 2 zones at least; known zones: a: add nodes in another zone"),
        ((["a"], ["b"]), 3, "3 stages need 3 zones at least; known zones: a, b: add nodes in"),
        ((["a"], ["b"]), 4, ""),
        ((["a"], ["b", "c"]), 3, ""),
        ((["a"],), 1, ""),
    ],
)
def test_pools_that_can_never_hold_the_grid_are_refused(
    zones: tuple[list[str], ...],
    stages: int,
    words: str,
    manifest: dict[str, Any],
    write: Any,
) -> None:
    """The operator takes such a job and says so in its status, and it waits for ever."""
    manifest["spec"]["redundancy"] = {"mode": "Auto"}
    manifest["spec"]["pipelines"] = {"count": 2, "stages": stages}
    manifest["spec"]["placement"] = {"pools": [{"zones": some} for some in zones]}
    if not words:
        assert plan(write(manifest)).spec.pipelines.stages == stages
        return
    with pytest.raises(CommandError, match=f"spec.placement: ring neighbours must not .*{words}"):
        plan(write(manifest))


def test_args_that_are_nested_too_deeply_are_refused(manifest: dict[str, Any], write: Any) -> None:
    args: dict[str, Any] = {}
    manifest["spec"]["model"]["args"] = args
    for _ in range(98):
        args["a"] = args = {}
    with pytest.raises(CommandError, match="spec: is nested 101 levels deep; at most 100 are"):
        plan(write(manifest))


def test_more_stages_than_layers_are_refused(manifest: dict[str, Any], write: Any) -> None:
    manifest["spec"]["pipelines"]["stages"] = 9
    with pytest.raises(CommandError, match=r"8 layers cannot be cut into 9 stages: set pipelines"):
        plan(write(manifest))


def test_an_unknown_model_needs_a_profile_or_a_shape(manifest: dict[str, Any], write: Any) -> None:
    manifest["spec"]["model"] = {"factory": "mine:model"}
    with pytest.raises(CommandError, match=r"mine:model cost: measure them with `bamboo profile`"):
        plan(write(manifest))


@pytest.mark.parametrize("options", [{}, {"shape": "gpt2"}])
@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"width": "wide"}, "width: is 'wide'; it must be an integer from 1 to 16,777,216"),
        ({"width": True}, "width: is True; it must be an integer from 1 to"),
        ({"layers": 0}, "layers: is 0; it must be an integer from 1 to 16,000"),
        ({"layers": 10**200}, r"layers: is 10+; it must be an integer from 1 to 16,000"),
        ({"context": 10**200}, r"context: is 10+; it must be an integer from 1 to 16,777,216"),
        ({"vocab": 2.0}, r"vocab: is 2\.0; it must be an integer from 1 to 16,777,216"),
        ({"heads": "x"}, "heads: is 'x'; it must be an integer from 1 to 16,777,216"),
        ({"heads": 0}, "heads: is 0; it must be an integer from 1 to"),
        ({"headz": 4}, "headz: is not known; the fields of .* are vocab, layers, width, heads, "),
        ({"dropout": 1.5}, r"dropout: is 1\.5; it must be a number from 0 to 1"),
        ({"dropout": nan}, "dropout: is nan; it must be a number from 0 to 1"),
        ({"width": 97}, "width: 97 is not divisible by heads 4; set a multiple of it"),
        ({"heads": 5}, "width: 128 is not divisible by heads 5; set a multiple of it"),
    ],
)
def test_what_the_built_in_model_refuses_is_refused(
    manifest: dict[str, Any], write: Any, args: Any, words: str, options: dict[str, Any]
) -> None:
    manifest["spec"]["model"]["args"] = args
    with pytest.raises(CommandError, match=rf"spec\.model\.args\.{words}"):
        plan(write(manifest), **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"shape": "huge"}, "--shape huge is not known; give one of bert-large, gpt2"),
        ({"memory": "lots"}, "--memory 'lots' is not a quantity; give bytes, as in 80Gi"),
        ({"shape": "gpt2", "profile": Path("x")}, "--profile and --shape both say"),
        ({"memory": "0"}, "--memory '0' is less than a mebibyte; is its unit missing"),
        ({"memory": "-5"}, "--memory '-5' is less than a mebibyte"),
        ({"memory": "80"}, "--memory '80' is less than a mebibyte"),
        ({"tflops": nan}, "--tflops is nan; give a finite number"),
        ({"hazard": inf}, "--hazard is inf; give a finite number"),
        ({"gbits": inf}, "--bandwidth is inf; give a finite number"),
        ({"stop_s": inf}, "--stop is inf; give a finite number"),
        ({"step_s": nan}, "--step is nan; give a finite number"),
        ({"restart_s": inf}, "--restart is inf; give a finite number"),
        ({"refill_s": nan}, "--refill is nan; give a finite number"),
        ({"gbits": 1e-310}, "--bandwidth is 1e-310; give a number from 0.001 to 100000"),
        ({"gbits": 2e5}, "--bandwidth is 200000.0; give a number from 0.001 to 100000"),
        ({"tflops": 1e-310}, r"--tflops is 1e-310; give a number from 1e-09 to 1e\+09"),
        ({"restart_s": 1e308}, r"--restart is 1e\+308; give a number from 1e-09 to 1e\+09"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(CommandError, match=words):
        plan(**options)


# ---------------------------------------------------------------- words


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0 s"), (2.5e-5, "25 us"), (0.0125, "12.5 ms"), (3.14159, "3.14 s"),
        (12345.6, "12346 s"), (float("inf"), "-"),
    ],
)  # fmt: skip
def test_seconds(value: float, shown: str) -> None:
    assert seconds(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"), [(0, "0 B"), (999, "999 B"), (1024, "1 KiB"), (5 << 40, "5 TiB")]
)
def test_sizes(value: int, shown: str) -> None:
    assert size(value) == shown
