"""The logs that agents of a fleet leave, and their replay through the core's state machines.
Nothing here starts a process.

Public: ``event_logs``, ``instruction_log``, ``sample_log``, ``state_log``.
"""
