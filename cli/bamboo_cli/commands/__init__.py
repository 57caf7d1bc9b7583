"""The commands with their options, one file for each, and what only that command does. Not here:
reading of objects, and drawing.

Public: ``explain``, ``logs``, ``plan``, ``preempt``, ``profile``,
``quickstart``, ``report``, ``restore``, ``status``, ``top``, ``version``.
"""
