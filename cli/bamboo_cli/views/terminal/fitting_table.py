"""Tables that fit into the terminal: columns that have no room are named, and nothing is cut off.

Only a word that would take more than a third of a line is split, in a column that wraps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text


@dataclass(frozen=True)
class Column:
    """rank: columns of the highest rank are left out first; 0: never. wraps: between words."""

    heading: str
    cells: Sequence[str | Text]
    rank: int = 0
    wraps: bool = False

    def least_width(self, line: int) -> int:
        """In a line of this width."""
        texts = [self.heading, *(str(cell) for cell in self.cells)]
        words = [word for text in texts for word in (text.split() if self.wraps else [text])]
        longest = max(map(cell_len, words), default=0)
        if not self.wraps:
            return longest
        return min(longest, max(line // 3, cell_len(self.heading)))


@dataclass(frozen=True)
class FittingTable:
    """All columns have the same number of cells."""

    columns: Sequence[Column]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        kept, left_out = list(self.columns), set[str]()
        line = options.max_width
        while kept and _least_width(console, kept, line) > line:
            last = max(kept, key=lambda column: column.rank)
            if not last.rank:
                line = 0  # columns that wrap take what there is
                break
            kept.remove(last)
            left_out.add(last.heading)
        table = _empty(kept, line)
        for cells in zip(*(column.cells for column in kept), strict=True):
            table.add_row(*cells)
        yield table
        if left_out:
            named = [c.heading for c in self.columns if c.heading in left_out]
            yield Text(f"A wider terminal also shows: {', '.join(named)}.", style="dim")


def _empty(columns: Sequence[Column], line: int) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    for column in columns:
        table.add_column(
            column.heading,
            overflow="fold",
            no_wrap=not column.wraps,
            min_width=column.least_width(line),
        )
    return table


def _least_width(console: Console, columns: Sequence[Column], line: int) -> int:
    """Rich would count the longest words of the cells, however long they are."""
    unlimited = console.options.update(max_width=1 << 16)
    return Measurement.get(console, unlimited, _empty(columns, line)).minimum
