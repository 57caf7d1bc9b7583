"""Which jobs may have pods now, by priority and age or by Kueue; not which pods they then make.

Public: ``line`` (jobs of one cluster, by priority and age), ``claims`` (what it decides about),
``quota`` (Kueue).
"""
