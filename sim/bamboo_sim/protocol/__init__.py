"""The explorer: the production state machines in one process under a controlled scheduler. It
imports only the core. Not here: fleets of real processes, which are in fleet, and virtual time,
which is in timed.
"""
