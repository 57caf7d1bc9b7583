"""Instructions on tensors: passes, sums, votes, versions of layers. Not here: when to run them.

Public: ``backend``, ``checks``, ``held``, ``layers``, ``optim``,
``optimizer_state``, ``stage``, ``state``, ``sums``.
"""
