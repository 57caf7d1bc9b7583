"""Which jobs may have pods now: those that compete for room, and those that wait in a queue.

Not here: which pods a job makes then.

Public: ``line`` (jobs of one cluster, by priority and age), ``claims`` (what it decides about),
``quota`` (by the word of Kueue).
"""
