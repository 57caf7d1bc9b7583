"""The errors of the development cluster.

    DevclusterError            one sentence: what is wrong and what to do
    |-- BinaryError            a program could not be found, downloaded or built
    |-- DirectoryError         the cluster directory cannot be used
    |-- ComponentError         a control plane program failed to start, or exited
    |-- NodeError              a node operation is impossible, or its target does not exist
    `-- SpecError              a value given by the user is invalid; names the field

The command line prints the sentence and exits with code 1. Any other exception is a bug and prints
its traceback.
"""

import errno


class DevclusterError(Exception):
    """One sentence: what is wrong, and what to do about it."""


class BinaryError(DevclusterError):
    """A program could not be found, downloaded or built."""


class DirectoryError(DevclusterError):
    """The cluster directory cannot be used."""


class ComponentError(DevclusterError):
    """A control plane program failed to start, or exited."""


class NodeError(DevclusterError):
    """A node operation is impossible now, or its target does not exist."""


class SpecError(DevclusterError):
    """A value given by the user is invalid; the message names the field and the remedy."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


def disk_full_message(where: object) -> str:
    """The message for a full disk."""
    return f"The disk that holds {where} is full; free some space there and try again."


def is_disk_full(error: OSError) -> bool:
    """Return whether the error means that no space or quota is left."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)
