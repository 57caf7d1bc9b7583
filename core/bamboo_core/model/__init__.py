"""What a step consists of: names, items, programs, the canonical sum; not who computes it, or when.

Public: every module.
"""
