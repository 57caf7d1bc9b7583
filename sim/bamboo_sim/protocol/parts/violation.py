"""The exception that every check raises, and that exploration looks for."""


class Violation(Exception):  # noqa: N818 - a finding, not a fault of the explorer
    """A broken invariant of the protocol."""
