"""Samples and micro-batches: which, in which order, cached. Not here: what is done with them.

Public: every module.
"""
