"""Faults that a fleet injects into the connections, disks and instructions of running agents. The
fleet writes the faults in force to a file, which all agents read. Deaths at exact instructions
belong to switches.

Public: ``disk``, ``effects``, ``faults``, ``inside``, ``state``, ``trickle``.
"""
