"""Which of several later steps is the shortest, by dry runs; not which ways and moves there are.

Not here: the ways to share lost work (``scheduling``), and possible moves (``placement``).
Public: ``comparison`` (of the ways).
"""
