"""Pods whose containers are processes of this machine, run as a kubelet would run them. Not here:
nodes, and the pods of real kubelets.

Public: ``container``, ``container_log``, ``events``, ``preparation``, ``pod``.
"""
