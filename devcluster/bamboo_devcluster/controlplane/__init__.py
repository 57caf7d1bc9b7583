"""etcd, the API server, the controller manager and the scheduler: their flags, credentials, starts,
restarts and audit log. Not here: nodes, and how the programs are obtained.

Public: ``components``, ``startup``.
"""
