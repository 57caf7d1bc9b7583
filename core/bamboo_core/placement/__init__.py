"""Which agent sits in which seat and holds which layers.

Not here: what it computes there.

Public: ``plan``, ``zones``, ``capacity``.
"""
