"""Shows how far weights have moved, and what was written."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from bamboo_core.api import local_run
from bamboo_core.model.counts import counted


class WeightsView:
    """Use it in a with statement. The bar is for terminals only."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            *(TextColumn("layers"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("layers", total=None)

    def __enter__(self) -> WeightsView:
        self._bar.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.__exit__(kind, error, trace)

    def moved(self, told: local_run.Moved) -> None:
        """Some layers are done."""
        self._bar.update(self._task, completed=told.layers, total=told.total)

    def written(self, told: local_run.Written) -> None:
        """All is in its place."""
        size = f"{counted(told.tensors, 'tensor')}, {told.num_bytes:,} bytes"
        self._console.print(f"{told.source} -> {told.path}: {size}", soft_wrap=True)
        for note in told.notes:
            self._console.print(f"note: {note}", soft_wrap=True)
