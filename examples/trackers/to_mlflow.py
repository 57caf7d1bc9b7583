"""Sends committed steps to an MLflow server: one run for each attempt of the job.

spec.hooks:
- factory: my_training.to_mlflow:tracker
  args: {uri: "http://mlflow.mlops:5000", experiment: my-experiment}
"""

import time

from mlflow import MlflowClient
from mlflow.entities import Metric


def tracker(uri, experiment):
    return Tracker(MlflowClient(tracking_uri=uri), experiment)


class Tracker:
    def __init__(self, client, experiment):
        self._client, self._attempt, self._run = client, None, None
        found = client.get_experiment_by_name(experiment)
        self._experiment = found.experiment_id if found else client.create_experiment(experiment)

    def step(self, record):
        if record.attempt != self._attempt:
            self._run, self._newest = self._find(record)
            self._attempt = record.attempt
        if record.step <= self._newest:
            return  # another agent has sent it: MLflow would keep it twice
        now_ms = int(time.time() * 1000)
        found = [Metric(name, x, now_ms, record.step) for name, x in values(record).items()]
        self._client.log_batch(self._run, metrics=found)

    def _find(self, record):
        """The attempt's run, which another agent may have begun, and its newest step."""
        tags = {"bamboo.job": record.job, "bamboo.attempt": str(record.attempt)}
        query = " and ".join(f"tags.`{name}` = '{value}'" for name, value in tags.items())
        for run in self._client.search_runs([self._experiment], query):
            history = self._client.get_metric_history(run.info.run_id, "agents")
            return run.info.run_id, max((x.step for x in history), default=-1)
        name = f"{record.job}-{record.attempt}"
        run = self._client.create_run(self._experiment, tags=tags, run_name=name)
        return run.info.run_id, -1


def values(record):
    names = ("loss", "grad_norm", "validation_loss", "samples_per_s", "agents")
    found = {name: getattr(record, name) for name in names}
    found["samples_per_s"] = record.samples_per_s or None  # 0: not known
    return {name: x for name, x in {**found, **record.metrics}.items() if x is not None}
