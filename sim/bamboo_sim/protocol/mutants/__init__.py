"""Faults planted into the product, which exploration must find: the broken rules, and lists of them
with the families that find them. Mutants that a tool makes from the code belong to mutation.

Public: ``patches``, ``planted``.
"""
