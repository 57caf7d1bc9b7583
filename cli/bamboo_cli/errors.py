"""What the command says instead of a traceback.

CommandError              one sentence for a person: what is wrong and what to do; exit code 1
|-- ClusterError          the API server cannot be reached, or refused
`-- ProgramError          a program that was started (kubectl, helm) has failed
"""


class CommandError(Exception):
    """One sentence for a person: what is wrong, and what to do about it."""


class ClusterError(CommandError):
    """The API server cannot be reached, or refused."""


class ProgramError(CommandError):
    """A program that was started has failed; the sentence ends with its own last line."""
