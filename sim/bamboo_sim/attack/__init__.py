"""Attacks on agents and operator: real processes and sockets, made-up bytes and manifests. A module
for each port, and honest clients that must get through. Faults of a job's own agents belong to
fleet/injection.

Public: nothing; commands, benchmarks and tests start from here.
"""
