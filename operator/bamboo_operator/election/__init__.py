"""Which process leads: the Lease, and other releases of Bamboo in the cluster. Not here: what a
leader does.

Public: every module.
"""
