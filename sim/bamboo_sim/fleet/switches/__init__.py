"""Deaths and standstills of a worker at an instruction that the fleet names, also while it makes a
process group. Faults of sockets and disks belong to injection.

Public: every module.
"""
