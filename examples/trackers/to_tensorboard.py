"""Writes committed steps for TensorBoard. Needs tensorboard, and a folder that outlives the agents.

spec.hooks:
- factory: my_training.to_tensorboard:tracker
  args: {folder: /checkpoints/tensorboard/my-job}
"""

from torch.utils.tensorboard import SummaryWriter


def tracker(folder):
    return Tracker(folder)


class Tracker:
    def __init__(self, folder):
        self._folder, self._attempt, self._writer = folder, None, None

    def step(self, record):
        if record.attempt != self._attempt:
            self.close()
            # hides what was written of this step and later ones: they come again
            self._writer = SummaryWriter(self._folder, purge_step=record.step, flush_secs=10)
            self._attempt = record.attempt
        for name, value in values(record).items():
            self._writer.add_scalar(name, value, record.step)

    def close(self):
        if self._writer is not None:
            self._writer.close()


def values(record):
    names = ("loss", "grad_norm", "validation_loss", "samples_per_s", "agents")
    found = {name: getattr(record, name) for name in names}
    found["samples_per_s"] = record.samples_per_s or None  # 0: not known
    return {name: x for name, x in {**found, **record.metrics}.items() if x is not None}
