"""Attacks on the ports of agents and operator: real processes, real sockets, made-up bytes.

A manifest's attack belongs here, too, once there is one: `manifests.py`, with the same `Tally`.
"""
