"""Shows a run on this machine: the layers, a line of progress, what happens, and its end."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from bamboo_core.api import local_run
from bamboo_core.api.events import EventReason, Severity
from bamboo_core.api.outcome import Outcome
from bamboo_core.model.counts import counted

_SHOWN = {
    *(EventReason.AGENT_LOST, EventReason.RESUMED, EventReason.RESTORING, EventReason.WAITING),
    *(EventReason.CHECKPOINT_FOUND, local_run.VALIDATED),
}
_RATE_STEPS = 20
_PLAIN_S = 5.0
_LONG_S = 60.0  # what lasts for so long is printed more rarely


class LocalRunView:
    """Use it in a with statement. On a terminal the line of progress is redrawn in place; elsewhere
    it is printed every few seconds."""

    def __init__(
        self,
        console: Console,
        *,
        steps: int,
        batch: int,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """batch: samples in a step."""
        self._console, self._steps, self._batch, self._now = console, steps, batch, now
        self._layers: list[local_run.Layer] = []
        self._has_trained = False
        self._times: deque[tuple[int, float]] = deque(maxlen=_RATE_STEPS + 1)
        self._printed_at = now()
        self._has_lost = False
        self._said: set[str] = set()  # since training went on last
        self._live = Live(console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> LocalRunView:
        if self._console.is_terminal:
            self._live.__enter__()
            self._live.update(Text("loading torch"))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._console.is_terminal:
            self._live.__exit__(kind, error, trace)

    def show(self, told: local_run.Told) -> None:
        """Show what has happened."""
        match told:
            case local_run.Doing(text, seconds):
                every_s = _PLAIN_S if seconds < _LONG_S else _LONG_S / 4
                self._show_line(f"{text}  {seconds:.0f} s", every_s=every_s)
            case local_run.Layer():
                self._layers.append(told)
            case local_run.Fleet():
                self._console.print(layers_table(self._layers))
                self._print(_fleet_text(told))
            case local_run.Step():
                self._step(told)
            case local_run.Killed(agent, number, planned):
                self._print(f"taking {agent} away ({number} of {planned})")
            case local_run.Happened(reason, message, severity):
                is_start = reason == EventReason.RESUMED and not self._has_lost
                self._has_lost |= reason == EventReason.AGENT_LOST
                if severity is Severity.WARNING or (reason in _SHOWN and not is_start):
                    self._print_once(f"{reason}: {message}")
                if reason == EventReason.RESUMED:
                    self._said.clear()
                    self._times.clear()  # a pause says nothing about the time that is left
            case local_run.Compared():
                self._print(compared_text(told))
            case local_run.Ended():
                self._end(told)

    def _step(self, told: local_run.Step) -> None:
        self._has_trained = True
        self._times.append((told.step, self._now()))
        self._show_line(self._progress(told), is_last=told.step + 1 == self._steps)

    def _show_line(self, line: str, *, is_last: bool = False, every_s: float = _PLAIN_S) -> None:
        """The line of progress. is_last: it is printed in any case; every_s: not more often."""
        now = self._now()
        if self._console.is_terminal:
            self._live.update(Text(line))
        elif now - self._printed_at >= every_s or is_last:
            self._printed_at = now
            self._print(line)

    def _progress(self, told: local_run.Step) -> str:
        parts = [f"step {told.step + 1}/{self._steps}", f"loss {told.loss:.4f}"]
        parts += [f"{name} {value:.4g}" for name, value in sorted(told.metrics.items())]
        if told.validation_loss is not None:
            parts.append(f"validation {told.validation_loss:.4f}")
        validated = sorted(told.validation_metrics.items())
        parts += [f"validation {name} {value:.4g}" for name, value in validated]
        (first, began), (last, ended) = self._times[0], self._times[-1]
        if last > first and ended > began:
            rate = (last - first) / (ended - began)
            left = (self._steps - told.step - 1) / rate
            parts += [f"{rate * self._batch:.4g} samples/s", f"{_clock(left)} left"]
        return "  ".join([*parts, counted(told.agents, "agent")])

    def _end(self, told: local_run.Ended) -> None:
        if told.outcome is Outcome.FAILED:
            if self._layers and not self._has_trained:
                self._console.print(layers_table(self._layers))
            if told.checkpoint:
                self._print(f"checkpoint: {told.checkpoint}")
            return  # the command's error says why
        self._print(f"{told.outcome}: {told.message}" if told.message else str(told.outcome))
        if told.checkpoint:
            self._print(f"checkpoint: {told.checkpoint}")
            self._print(f"final state: {told.digest}")
        if told.best:
            self._print(f"best checkpoint: {told.best}")

    def _print_once(self, line: str) -> None:
        """While training stands still, agents are asked again, and each time the same happens."""
        if line not in self._said:
            self._said.add(line)
            self._print(line)

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def layers_table(layers: list[local_run.Layer]) -> Table:
    """Each layer, with what it makes of what it gets."""
    table = Table(box=None, pad_edge=False)
    for name in ("layer", "module"):
        table.add_column(name)
    table.add_column("parameters", justify="right")
    table.add_column("output")
    for layer in layers:
        number = "" if layer.index < 0 else str(layer.index)
        count = "" if layer.index < 0 else f"{layer.parameters:,}"
        table.add_row(number, layer.name, count, layer.output)
    return table


def compared_text(told: local_run.Compared) -> str:
    """Whether the job's bits are those of the plain loop."""
    what = f"{counted(told.steps, 'step')} of a plain loop of the same layers"
    if told.differs:
        return f"DIFFERENT from {what}: {told.differs}"
    return f"equal, bit for bit, to {what}: {counted(told.tensors, 'tensor')}"


def _fleet_text(told: local_run.Fleet) -> str:
    agents = counted(told.pipelines * told.stages, "agent")
    where = f"{counted(told.gpus, 'GPU')}" if told.gpus else "the CPU"
    return (
        f"{told.pipelines} x {told.stages} (pipelines x stages): {agents} on {where};"
        f" logs and checkpoints in {told.folder}"
    )


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
