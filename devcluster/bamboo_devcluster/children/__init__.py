"""Child processes: how they start so that none outlives the cluster, their environment, and the end
of their logs. Not here: what a program is for.

Public: ``environment``, ``launch``, ``logs``.
"""
