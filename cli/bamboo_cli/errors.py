"""Errors that the command prints instead of a traceback.

CommandError              one sentence: what is wrong and what to do; exit code 1
|-- ClusterError          the API server is unreachable or refused the request
|   |-- NotFoundError     it does not know the object
|   |-- ConflictError     the object is not as the request expects
|   |-- NotReadyError     a pod has no log yet, or is gone
|   |   `-- NodeSilentError  its node does not answer the API server
|   `-- ForbiddenError    the user may not do this
`-- ProgramError          kubectl or helm failed
"""


class CommandError(Exception):
    """One sentence: what is wrong, and what to do about it."""


class ClusterError(CommandError):
    """The API server is unreachable, or refused the request."""


class NotFoundError(ClusterError):
    """The object, or its whole kind, does not exist."""


class ConflictError(ClusterError):
    """The object is not as the request expects, for example another one with its name."""


class NotReadyError(ClusterError):
    """A pod has no log: its container has not started, or the pod is gone."""


class NodeSilentError(NotReadyError):
    """The API server does not reach the kubelet of the pod's node."""


class ForbiddenError(ClusterError):
    """The user may not make this request."""


class ProgramError(CommandError):
    """A program failed; the message ends with the last line of its output."""
