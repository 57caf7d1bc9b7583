"""A job in the cluster at one moment: what it is, what is wrong with it, and what a loss would do.
Pure reading of its manifest, pods, nodes and events. Not here: its course over time, which is in
run.

Public: ``diagnosis``, ``events``, ``left``, ``listing``, ``news``, ``pods``, ``snapshot``,
``state``, ``victims``, ``what_if``.
"""
