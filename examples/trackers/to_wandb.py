"""Sends committed steps to Weights & Biases: one run for each attempt, in the group of the job.

spec.hooks:
- factory: my_training.to_wandb:tracker
  args: {project: my-project}

WANDB_API_KEY comes from a Secret by spec.worker.env.
"""

import wandb


def tracker(project, **settings):
    return Tracker(project, settings)


class Tracker:
    def __init__(self, project, settings):
        self._project, self._settings = project, settings
        self._attempt, self._run = None, None

    def step(self, record):
        if record.attempt != self._attempt:
            self.close()
            name = record.job.replace("/", "-")
            # another agent goes on with the run of the one before
            self._run = wandb.init(
                project=self._project,
                id=f"{name}-{record.attempt}",
                group=name,
                resume="allow",
                config=self._settings,
            )
            self._attempt = record.attempt
        # steps that come again are below the run's newest step: W&B ignores them
        self._run.log(values(record), step=record.step)

    def close(self):
        if self._run is not None:
            self._run.finish()


def values(record):
    names = ("loss", "grad_norm", "validation_loss", "samples_per_s", "agents")
    found = {name: getattr(record, name) for name in names}
    found["samples_per_s"] = record.samples_per_s or None  # 0: not known
    return {name: x for name, x in {**found, **record.metrics}.items() if x is not None}
