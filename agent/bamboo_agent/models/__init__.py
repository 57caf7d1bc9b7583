"""Models that come with Bamboo, each a factory for ``spec.model``. Not here: what a model is.

Public: every module.
"""
