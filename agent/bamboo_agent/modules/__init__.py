"""Modules of torch that the runtime runs in a way of its own. Layers, steps and sums do not belong
here.

Public: ``batch_norm``.
"""
