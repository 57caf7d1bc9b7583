"""The production agents and arbiter in virtual time, with declared times of tasks and no payloads.
Read declared.py, agent.py and fleet.py; measured.py measures. It imports only the core.

Public: nothing; started as a command.
"""
