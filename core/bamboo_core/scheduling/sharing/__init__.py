"""Which agent computes which leaf of a step, and the ways to share lost work; not the tasks.

Not here: what a step needs (``graph``), which ways a policy allows (``candidates``, beside this
folder), and which is the shortest by dry run (``planning``).
Public: ``step_work`` (the question), ``dealing`` (whose leaves are whose while no seat is empty),
``orders`` (in which order pipelines process them).
"""
