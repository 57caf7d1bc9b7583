"""Which jobs may have pods now: the line of those that compete, Kueue, and the room for plans. Not
here: the rules of the line and of quotas, which the core's admission decides.

Public: ``held_tasks``, ``kueue``, ``line``.
"""
