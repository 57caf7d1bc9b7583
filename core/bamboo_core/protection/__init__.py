"""Which redundancy a job should take: what each mode costs, and what it saves.

Not here: when the question is asked again, and how a change of mode is carried out.

Public: ``choice``, ``facts``, ``hazard``, ``inputs``, ``interrupted``, ``measured``,
``profile_file``, ``shapes``.
"""
