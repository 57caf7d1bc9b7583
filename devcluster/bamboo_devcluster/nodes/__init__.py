"""The machines of a cluster: one interface, and two kinds of nodes behind it. Not here: the control
plane. Only what both kinds use stands beside the folders.

Public: ``interface``.
"""
