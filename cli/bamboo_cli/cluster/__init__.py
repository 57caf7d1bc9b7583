"""How the command reaches a cluster, and what it fetches there: the one client of the API server,
where to look, and logs. Not here: judging what is fetched.

Public: ``kube``, ``log_lines``, ``log_streams``, ``place``, ``plain_text``, ``watch``.
"""
