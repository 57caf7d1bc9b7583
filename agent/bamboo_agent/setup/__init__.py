"""The set-up of a worker: it builds, tries, profiles and identifies its job. Not here: steps.

Public: ``channel``, ``determinism``, ``factories``, ``fingerprint``, ``lazy_dynamo``, ``tries``.
"""
