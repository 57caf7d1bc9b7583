"""Checkpoints: written and read in the background. Not here: when to write one.

Public: ``checkpoint``, ``origin``, ``reader``, ``saver``, ``sealer``, ``sight``.
"""
