"""The machines of a cluster: one interface, and two kinds of nodes behind it. The folder pods
runs the pods of kind `process`. Not here: the control plane. Only what both kinds use stands beside
the folders.

Public: ``interface``.
"""
