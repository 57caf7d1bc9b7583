"""What the operator does about a job's pods, and what it tells the user; nothing of training.

Public: ``view``, ``reconcile``, ``lifecycle``, ``failures``, ``pod_zones``, ``shortage``,
``turn``.
"""
