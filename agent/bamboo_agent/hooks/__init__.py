"""What tells the user's trackers the committed steps: which agent does, and the hooks' processes.
Not here: torch, and code of users outside ``host`` and ``check``, which are processes of their own.

Public: ``check``, ``hooks``, ``record``.
"""
