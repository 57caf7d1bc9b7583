"""Faults that a fleet injects into the connections, disks and instructions of running agents.

The agents run production code. A thread that the fleet adds to each of their processes obeys
orders: `faults` gives them, `inside` performs them.
"""
