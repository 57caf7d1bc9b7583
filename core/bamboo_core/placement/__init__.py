"""Which agent gets which seat, layers and node; not which tasks it computes.

Public: ``plan``, ``zones``, ``capacity``, ``fitting``, ``node_pools``.
"""
