"""The node kind `process`: one daemon is the kubelet of all its nodes, and the folder pods runs
their pods as processes. Not here: real kubelets.

Public: ``addresses``, ``endpoint``, ``kind``.
"""
