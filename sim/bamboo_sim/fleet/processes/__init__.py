"""The main programs of a fleet's processes: a supervisor, a worker forked from a process with torch
loaded, and that process. The fleet starts them by their module names. Not here: the fleet itself.

Public: nothing; commands, benchmarks and tests start from here.
"""
