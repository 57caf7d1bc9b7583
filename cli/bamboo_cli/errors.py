"""Errors that the command prints instead of a traceback.

CommandError              one sentence: what is wrong and what to do; exit code 1
|-- ClusterError          the API server is unreachable or refused the request
`-- ProgramError          kubectl or helm failed
"""


class CommandError(Exception):
    """One sentence: what is wrong, and what to do about it."""


class ClusterError(CommandError):
    """The API server is unreachable, or refused the request."""


class ProgramError(CommandError):
    """A program failed; the message ends with the last line of its output."""
