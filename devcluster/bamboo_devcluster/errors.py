"""The errors of the development cluster.

    DevclusterError            one sentence for a person: what is wrong and what to do
    |-- BinaryError            a program could be neither found, downloaded nor built
    |-- DirectoryError         the cluster directory cannot be used
    |-- ComponentError         a control plane program did not start or stopped
    |-- NodeError              a node operation names what does not exist, or is not possible
    `-- SpecError              a value given by the user is wrong; names the field

The command line prints the sentence and exits with code 1; anything else is a defect and shows its
traceback.
"""

import errno


class DevclusterError(Exception):
    """One sentence for a person: what is wrong, and what to do about it."""


class BinaryError(DevclusterError):
    """A program could be neither found, downloaded nor built."""


class DirectoryError(DevclusterError):
    """The cluster directory cannot be used."""


class ComponentError(DevclusterError):
    """A control plane program did not start, or stopped."""


class NodeError(DevclusterError):
    """A node operation names something that does not exist, or that is not possible now."""


class SpecError(DevclusterError):
    """A value given by the user is wrong; the message names the field and the remedy."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


def disk_full_message(where: object) -> str:
    """Return the one sentence that is used wherever the disk is full."""
    return f"The disk that holds {where} is full; free some space there and try again."


def is_disk_full(error: OSError) -> bool:
    """Tell whether an OSError means that no space (or no quota) is left."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)
