"""What is wrong with a message."""

from __future__ import annotations


class WireError(ValueError):
    """A message that cannot be converted. ``field``: path of the culprit, as "stop.fence"."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem
