"""What is a job in the cluster now, what is wrong with it, and what would a loss do? Pure reading
of its manifest, pods, nodes and events; its course over time is in `run`.

Public: ``diagnosis``, ``events``, ``listing``, ``pods``, ``snapshot``, ``state``, ``victims``,
``what_if``.
"""
