"""Before the first step: build, try, profile and identify a job. Not here: the event loop.

Public: ``channel``, ``determinism``, ``factories``, ``fingerprint``, ``lazy_dynamo``, ``probe``.
"""
