"""The examples of trackers: TensorBoard for real, the others over a stand-in for their library."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tests.agent.hooks.test_process import OWN, hooked, told

from bamboo_agent.hooks.hooks import Hooks
from bamboo_agent.hooks.record import StepRecord

EXAMPLES = Path(__file__).resolve().parents[3] / "examples/trackers"


def record(step: int, *, attempt: int = 1, loss: float = 0.0, **more: Any) -> StepRecord:
    return StepRecord("ns/job", attempt, step, 10, loss, 0.5, agents=4, **more)


def example(name: str) -> Any:
    """The module of an example."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def scalars(folder: Path, name: str) -> dict[int, float]:
    """The values that TensorBoard shows. A step that it would show twice is an error."""
    reader = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    reader.Reload()
    found = [(x.step, x.value) for x in reader.Scalars(name)]
    assert len(dict(found)) == len(found)
    return dict(found)


# ---------------------------------------------------------------- TensorBoard


@pytest.mark.timeout(180)  # it imports torch with low priority
async def test_tensorboard_in_a_process_of_a_hook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES))
    spec = hooked("to_tensorboard:tracker", folder=str(tmp_path))
    await told(Hooks(OWN, "ns/job", spec), range(10), wait_s=120.0)
    assert scalars(tmp_path, "loss") == dict.fromkeys(range(10), 0.0)
    assert scalars(tmp_path, "agents") == dict.fromkeys(range(10), 2.0)


def test_tensorboard_shows_a_step_that_comes_again_once_and_an_undone_one_not_at_all(
    tmp_path: Path,
) -> None:
    module = example("to_tensorboard")
    first = module.tracker(str(tmp_path))
    for step in range(6):
        first.step(record(step, loss=1.0, metrics={"accuracy": 0.5}))
    first.close()
    second = module.tracker(str(tmp_path))  # on another agent
    for step in range(3, 8):
        second.step(record(step, loss=1.0))
    for step in range(2, 5):
        second.step(record(step, attempt=2, loss=2.0))  # after a restore
    second.close()
    assert scalars(tmp_path, "loss") == {0: 1.0, 1: 1.0, 2: 2.0, 3: 2.0, 4: 2.0}
    assert scalars(tmp_path, "accuracy") == {0: 0.5, 1: 0.5}


# ---------------------------------------------------------------- stand-ins


@dataclass
class WandbRun:
    """A run that ignores steps below its newest one, as that of the library does."""

    group: str
    rows: dict[int, dict[str, float]] = field(default_factory=dict)
    is_open: bool = True

    def log(self, values: dict[str, float], *, step: int) -> None:
        assert self.is_open
        if step >= max(self.rows, default=0):
            self.rows.setdefault(step, {}).update(values)

    def finish(self) -> None:
        self.is_open = False


@pytest.fixture
def wandb_runs(monkeypatch: pytest.MonkeyPatch) -> dict[str, WandbRun]:
    """The runs of the server, by id."""
    runs: dict[str, WandbRun] = {}

    def init(*, project: str, id: str, group: str, resume: str, config: Any) -> WandbRun:
        assert (project, resume, config) == ("p", "allow", {"note": "x"})
        run = runs.setdefault(id, WandbRun(group))
        run.is_open = True
        return run

    module = ModuleType("wandb")
    module.init = init  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", module)
    return runs


def test_wandb_has_a_run_for_each_attempt_and_each_step_once(
    wandb_runs: dict[str, WandbRun],
) -> None:
    module = example("to_wandb")
    for steps in (range(5), range(2, 8)):  # two agents
        tracker = module.tracker("p", note="x")
        for step in steps:
            tracker.step(record(step, loss=float(step), validation_loss=None))
        tracker.close()
    tracker.step(record(4, attempt=2))
    assert list(wandb_runs) == ["ns-job-1", "ns-job-2"]
    first = wandb_runs["ns-job-1"]
    assert (first.group, first.is_open) == ("ns-job", False)
    assert {step: row["loss"] for step, row in first.rows.items()} == {
        x: float(x) for x in range(8)
    }
    assert "validation_loss" not in first.rows[0]
    assert list(wandb_runs["ns-job-2"].rows) == [4]


@dataclass
class MlflowServer:
    """Keeps every point that it gets, as MLflow does."""

    experiments: list[str] = field(default_factory=list)
    tags: dict[str, dict[str, str]] = field(default_factory=dict)
    points: dict[str, list[Any]] = field(default_factory=dict)

    def get_experiment_by_name(self, name: str) -> Any:
        known = name in self.experiments
        return SimpleNamespace(experiment_id=f"id-{name}") if known else None

    def create_experiment(self, name: str) -> str:
        self.experiments.append(name)
        return f"id-{name}"

    def search_runs(self, experiments: list[str], query: str) -> list[Any]:
        assert experiments == ["id-e"]
        wanted = dict(part.split(" = ") for part in query.split(" and "))
        found = {name.removeprefix("tags.").strip("`"): x.strip("'") for name, x in wanted.items()}
        return [self._run(run) for run, tags in self.tags.items() if tags == found]

    def create_run(self, experiment: str, *, tags: dict[str, str], run_name: str) -> Any:
        assert experiment == "id-e"
        self.tags[run_name], self.points[run_name] = tags, []
        return self._run(run_name)

    def get_metric_history(self, run: str, key: str) -> list[Any]:
        return [x for x in self.points[run] if x.key == key]

    def log_batch(self, run: str, *, metrics: list[Any]) -> None:
        self.points[run] += metrics

    @staticmethod
    def _run(name: str) -> Any:
        return SimpleNamespace(info=SimpleNamespace(run_id=name))


@dataclass
class Metric:
    key: str
    value: float
    timestamp: int
    step: int


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> MlflowServer:
    server = MlflowServer()

    def client(*, tracking_uri: str) -> MlflowServer:
        assert tracking_uri == "http://server"
        return server

    module, entities = ModuleType("mlflow"), ModuleType("mlflow.entities")
    module.MlflowClient = client  # type: ignore[attr-defined]
    entities.Metric = Metric  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", module)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    return server


def test_mlflow_has_a_run_for_each_attempt_and_each_step_once(mlflow: MlflowServer) -> None:
    module = example("to_mlflow")
    for steps in (range(5), range(2, 8)):  # two agents
        tracker = module.tracker("http://server", "e")
        for step in steps:
            tracker.step(record(step, loss=float(step)))
    tracker.step(replace(record(4, attempt=2), loss=None, validation_loss=1.0))
    assert mlflow.experiments == ["e"]
    found = [(x.step, x.value) for x in mlflow.points["ns/job-1"] if x.key == "loss"]
    assert found == [(x, float(x)) for x in range(8)]
    assert {(x.key, x.step) for x in mlflow.points["ns/job-2"]} == {
        (name, 4)
        for name in ("grad_norm", "validation_loss", "agents")  # no speed is known
    }
