"""Which agent computes which task, in which order, as checked programs.

Not here: which tasks exist.

Public, for planning: ``costs``, ``workmap``, ``remaining``, ``inflight``, ``schedule``, and
``dry_run``.
"""
