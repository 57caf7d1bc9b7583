"""The supervisor process: session, liveness, notices, the worker's process. Not here: torch.

Public: ``config``, ``event_log``, ``health``, ``launch``, ``liveness``, ``shell``.
"""
