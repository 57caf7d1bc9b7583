"""The control plane of a world: operators around the production Leadership, the API server's facts,
and the planner with a check of each answer. The operators' shell, which performs their effects, is
not here but in running.

Public: ``operator``, ``operators``, ``plans``.
"""
