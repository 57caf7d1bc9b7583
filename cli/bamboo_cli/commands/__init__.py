"""Which commands are there, with which options? One file for each command, with its options and
what only it does; no reading of objects, and no drawing.

Public: ``explain``, ``logs``, ``plan``, ``preempt``, ``profile``, ``quickstart``, ``report``,
``status``, ``top``, ``version``.
"""
