"""The production agents and arbiter in virtual time, with declared times of tasks. Read
declared.py, agent.py and fleet.py; measured.py measures. Not here: payloads, and anything beside
the core.

Public: nothing; commands, benchmarks and tests start from here.
"""
