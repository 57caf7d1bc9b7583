"""What was a job's run, from its start to its end? One model of it, the sources that it is built
from, and what is computed from it; a job at one moment is in `job`.

Public: ``consequence``, ``cost``, ``faults``, ``figures``, ``from_cluster``, ``from_watching``,
``model``, ``prometheus``, ``recovery``.
"""
