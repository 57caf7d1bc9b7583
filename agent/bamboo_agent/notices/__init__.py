"""Notices of clouds that this node will go away, from their metadata servers. Not here: torch.

Public: every module.
"""
