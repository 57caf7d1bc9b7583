"""Who takes part in a job, when training stops, goes on and ends; nothing of pods or conditions.

Each module decides one thing and changes the state, which is in ``arbiter_state``.

Public: ``arbiter``, the state machine.
"""
