"""The supervisor process: session, liveness, notices, the worker's process. Not here: torch."""
