"""Which redundancy a job should take, by the costs of each mode; not when to ask, or how to change.

Public: ``choice``, ``facts``, ``hazard``, ``inputs``, ``interrupted``, ``measured``,
``profile_file``, ``shapes``.
"""
