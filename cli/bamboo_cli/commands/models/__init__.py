"""The commands about a user's own model: a project, a run on this machine, weights out and in. What
is about a job on a cluster does not belong here.

Public: every module: ``export``, ``import_``, ``init``, ``train``.
"""
