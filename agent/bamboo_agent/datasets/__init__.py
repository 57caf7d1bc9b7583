"""Data sets that come with Bamboo, each a factory for ``spec.data``. Not here: batches of them.

Public: every module.
"""
