"""Faults planted into the product, which exploration must find: the broken rules, and the lists of
faults with the families that find them. Not here: mutants that a tool makes from the code, which
are in mutation.

Public: ``faults``, ``patches``.
"""
