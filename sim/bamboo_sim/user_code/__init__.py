"""Code as users write it, and what must come out of it: a refusal by name, or equal bits after
losses. Jobs with which something else is measured do not belong here.

The table is in ``cases``; ``judge`` runs a case.

Public: nothing; benchmarks and tests start from here.
"""
