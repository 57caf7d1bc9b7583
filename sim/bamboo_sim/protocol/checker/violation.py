"""What exploration looks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bamboo_sim.protocol.exploration.history import History


class Violation(Exception):  # noqa: N818 - a finding, not a fault of the explorer
    """A broken invariant of the protocol."""

    history: History | None = None  # set if it was found before the next fault was injected
