"""Processes that read samples ahead of the program. Not here: which samples a micro-batch has.

Public: ``errors``, ``loader``, ``server``.
"""
