"""The node kind `process`: one daemon is the kubelet of all its nodes. Not here: how the programs
of a pod run.

Public: ``addresses``, ``endpoint``, ``kind``.
"""
