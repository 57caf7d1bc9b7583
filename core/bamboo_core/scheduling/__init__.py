"""Which agent computes which task, in which order, as checked programs; not which tasks exist.

Public, for planning: ``candidates``, ``costs``, ``remaining``, ``inflight``, ``schedule``,
``dry_run``, ``item_bytes``, and ``device_memory``, which says what agents keep where. The folder
sharing is about the work of lost agents; ``candidates`` knows its ways and which a policy allows.
"""
