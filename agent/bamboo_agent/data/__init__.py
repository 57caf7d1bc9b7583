"""Samples and micro-batches, in the order that the job fixes. Not here: what is done with them.

Public: every module.
"""
