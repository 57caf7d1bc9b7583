"""The state of one history: agents, messages under way, and notes of what has happened, around the
production state machines. Nothing here chooses the next event or judges the whole.

Public: ``node``, ``state``.
"""
