"""Which of several later steps is the shortest, by dry runs: ways to share lost work, and moves.

Not here: the ways themselves (``scheduling.sharing``), which moves exist (``placement.moves``).
"""
