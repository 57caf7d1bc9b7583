"""Long-lived jobs of real agents under random faults, compared bit for bit with a quiet job. How a
fault is made belongs to fleet.

Public: nothing; commands, benchmarks and tests start from here.
"""
