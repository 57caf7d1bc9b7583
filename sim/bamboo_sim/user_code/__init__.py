"""Code as users write it, with what must come out: refused by name, or equal bits after losses.

The table is in ``cases``; ``judge`` runs a case. Nothing here is part of a job of ours.

Public: ``cases``, ``judge``; benchmarks and tests start from here.
"""
