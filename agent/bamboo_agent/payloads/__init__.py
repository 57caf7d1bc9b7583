"""Kinds of payloads, and frames, as plain data. Not here: what computes or moves them.

Public: every module.
"""
