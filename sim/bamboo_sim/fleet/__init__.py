"""Whole jobs on this machine without Kubernetes: real supervisors and workers, led by a real
arbiter in this process. The fleet itself stands here; its processes, faults, logs and runs have
folders. Workers without supervisors belong to workers.

Public: ``local_fleet``, ``local_operator``.
"""
