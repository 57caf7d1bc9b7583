"""Who computes which task, in which order, as checked programs.

Not here: which tasks there are.

Public, for planning: ``costs``, ``workmap``, ``remaining``, ``inflight``, ``schedule``, and
``dry_run``.
"""
