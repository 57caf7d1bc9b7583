"""What a step consists of: names of agents and items, programs, the canonical sum.

Not here: who computes what, and when.

Public: every module.
"""
