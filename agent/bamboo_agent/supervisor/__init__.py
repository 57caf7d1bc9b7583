"""The supervisor process: session, liveness, notices, worker process. It imports no torch."""
