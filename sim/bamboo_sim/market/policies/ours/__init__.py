"""Our system in each of its modes and ways to share lost work; nothing of another system.

Public: nothing; tables, benchmarks and tests start from here.
"""
