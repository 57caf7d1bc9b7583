"""What goes wrong with checkpoints."""

from __future__ import annotations


class CheckpointError(Exception):
    """A checkpoint cannot be written, or was read and is wrong. The text names the file.

    cause: why a write failed, without the file's name if many files would fail like this.
    """

    def __init__(self, text: str, attempt: int = 0, step: int = 0, *, cause: str = "") -> None:
        super().__init__(text)
        self.attempt, self.step, self.cause = attempt, step, cause or text


class UnreachableError(CheckpointError):
    """The storage fails, or a file or folder is not there: a mount may be late, and a folder may
    be away for a while. This says nothing about a checkpoint."""


class AbsentError(UnreachableError):
    """The storage answers, but a file is not there."""
