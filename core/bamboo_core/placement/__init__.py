"""Which agent gets which seat and which layers.

Not here: which agent computes what.

Public: ``plan``, ``zones``, ``capacity``, ``fitting``, ``node_pools``.
"""
