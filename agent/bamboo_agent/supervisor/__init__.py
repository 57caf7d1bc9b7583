"""The supervisor's process: session, liveness, notices, the worker's life. It imports no torch."""
