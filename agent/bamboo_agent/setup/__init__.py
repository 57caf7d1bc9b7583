"""The set-up of a worker: it builds, tries, profiles and identifies its job. Not here: steps.

Public: every module but those of ``probe``, and ``probe.layers``.
"""
