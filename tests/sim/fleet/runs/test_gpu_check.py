"""The checks over NCCL: what can be seen of them without a GPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bamboo_sim.fleet.runs import gpu_check
from bamboo_sim.fleet.runs.gpu_check import Check, Machine
from bamboo_sim.programs import results_file

ONE = Machine(("H200",), "2.29.1")


def fail() -> dict[str, float]:
    raise AssertionError("the bits differ")


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ([], 3, "gpu-check: torch sees no GPU on this machine; nothing was checked."),
        (["--kills", "1000"], 2, "--kills 1000 is more than there are points; give at most 72"),
        (["--rounds", "0"], 2, "'0' is not an integer of at least 1"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    status: int,
    words: str,
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr("sys.argv", ["gpu_check.py", *arguments])
    with pytest.raises(SystemExit) as ended:
        sys.exit(gpu_check.main())
    assert ended.value.code == status
    assert words in capsys.readouterr().err


def test_torch_without_nccl_is_named() -> None:
    assert "install a build of torch for CUDA" in Machine(("H200",), "").why_unusable()
    assert ONE.why_unusable() == ""


@pytest.mark.parametrize(
    ("machine", "two_ranks", "two_agents"),
    [
        (ONE, "need NCCL 2.30.3, and this is 2.29.1", "there is one GPU"),
        (Machine(("H200",), "2.30.3"), "", "there is one GPU"),
        (Machine(("H200",) * 2, "2.9.0"), "", ""),
    ],
)
def test_what_can_run_depends_on_gpus_and_nccl(
    machine: Machine, two_ranks: str, two_agents: str
) -> None:
    found = {c.name: c.hindrance for c in gpu_check.checks(machine, kills=1, rounds=1)}
    assert list(found) == ["one_rank", "bandwidth", "equality", "kill_points"]
    assert found["one_rank"] == ""
    assert (two_ranks in found["bandwidth"], bool(two_ranks)) == (True, bool(found["bandwidth"]))
    assert found["equality"] == found["kill_points"]
    assert (two_agents in found["equality"], bool(two_agents)) == (True, bool(found["equality"]))


@pytest.mark.parametrize(("last", "status"), [(dict, 0), (fail, 1)])
def test_the_result_has_a_state_for_each_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last, status: int
) -> None:
    made = [
        Check("bandwidth", "", lambda: {"process_group_over_nccl": 0.95}),
        Check("equality", "there is one GPU", fail),
        Check("kill_points", "", last),
    ]
    monkeypatch.setattr(results_file, "RESULTS", tmp_path)
    monkeypatch.setattr(gpu_check, "checks", lambda *_, **__: made)
    monkeypatch.setattr(Machine, "here", lambda: ONE)
    monkeypatch.setattr("sys.argv", ["gpu_check.py"])
    assert gpu_check.main() == status
    found = json.loads((tmp_path / "gpu_check.json").read_text())
    assert found["figures"] == {
        "bandwidth": "passed",
        "equality": "not run",
        "kill_points": "failed" if status else "passed",
        "bandwidth_process_group_over_nccl": 0.95,
    }
    samples = found["samples"]
    assert (samples["gpus"], samples["nccl"]) == (["H200"], "2.29.1")
    assert samples["why"]["equality"] == "there is one GPU"
    assert ("the bits differ" in samples["why"].get("kill_points", "")) is bool(status)


@pytest.mark.timeout(400)
def test_a_rank_of_its_own_makes_groups_one_after_the_other() -> None:
    """With gloo in the place of NCCL."""
    assert gpu_check.one_rank("gloo") == {}
