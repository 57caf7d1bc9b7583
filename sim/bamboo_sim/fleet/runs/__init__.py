"""The uses of a fleet: its jobs, scenarios of faults, many kills in one job, several fleets at
once, and the record. How a fault is made belongs to injection and switches.

Public: ``campaign``, ``jobs``.
"""
