"""The operator as its own process on a real API server, under thousands of fake agents. No worker
runs here; boards and alerts belong to watching.

Public: nothing; commands, benchmarks and tests start from here.
"""
