"""Long-lived jobs of real agents under random faults, compared bit for bit with a quiet job. How a
fault is made belongs to fleet.

Public: nothing; started as a command.
"""
