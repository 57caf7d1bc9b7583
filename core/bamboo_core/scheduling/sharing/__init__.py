"""Which agent computes which leaf of a step, and the ways to share lost work; not the tasks.

Not here: what a step needs (``graph``), and which way is the shortest by dry run (``planning``).
Public: ``step_work`` (the question), ``candidates`` (the answers), ``dealing`` (whose leaves are
whose while no seat is empty), ``orders`` (in which order pipelines process them).
"""
