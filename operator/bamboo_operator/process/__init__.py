"""The operator's process: event loop, turns of threads, garbage collector, log. Not here:
Kubernetes, jobs and agents.

Public: every module.
"""
