"""Agents' pods and the nodes below them: manifests, evictions, ends, and room on nodes. Not here:
which pods a job makes, and when.

Public: every module.
"""
