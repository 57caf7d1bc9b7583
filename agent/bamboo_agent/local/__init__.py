"""A job on this machine, without a cluster: its operator, its agents as processes, losses that are
injected, and a plain loop to compare with. Not here: what agents and arbiters do.

Public: ``certificates``, ``main``, ``operator``, ``processes``, ``reader``, ``run``.
"""
