"""The explorer: the production state machines in one process under a controlled scheduler. It
imports only the core. Fleets of real processes are in fleet, virtual time is in timed.
"""
