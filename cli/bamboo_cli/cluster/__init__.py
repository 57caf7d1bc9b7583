"""How does the command reach a cluster, and what does it fetch there? The one client of the API
server, where to look, and logs; nothing judges what it fetches.

Public: ``kube``, ``log_lines``, ``log_streams``, ``place``, ``plain_text``, ``watch``.
"""
