"""Errors of messages that cannot be read."""

from __future__ import annotations


class WireError(ValueError):
    """A message that cannot be converted. ``field``: path of the faulty field ("stop.fence")."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem

    @classmethod
    def at(cls, place: str, error: ValueError) -> WireError:
        """The error of a part, seen from the whole. ``place``: a field's name or "[index]"."""
        if not isinstance(error, WireError):
            return cls(place, str(error))
        dot = "" if error.field.startswith("[") else "."
        return cls(f"{place}{dot}{error.field}", error.problem)
