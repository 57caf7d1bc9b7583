"""The probe: tries each layer as training and recovery will use it. Not here: what follows from it.

Public: ``layers``, ``ties``.
"""
