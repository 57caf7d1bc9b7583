"""The quick start: a cluster on this machine, a job with injected faults, the same job without, and
the closing report. Not here: what other commands use.

Public: ``local_cluster``, ``scenario``.
"""
