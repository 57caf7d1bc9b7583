"""What the operator does about a job's pods, and what it reports to the user.

Not here: training.

Public: ``view``, ``reconcile``, ``lifecycle``, ``failures``, ``pod_zones``, ``shortage``,
``node_notices``, ``disruptions``, ``turn``.
"""
