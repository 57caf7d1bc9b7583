"""A job's run, from its start to its end: one model of it, the sources that it is built from, and
what is computed from it. Not here: a job at one moment, which is in job.

Public: ``consequence``, ``cost``, ``faults``, ``figures``, ``from_cluster``, ``from_watching``,
``model``, ``prometheus``, ``recovery``.
"""
