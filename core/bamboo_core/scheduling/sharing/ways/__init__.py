"""The ways to share lost work: each is one file with one function, step work to work map; not
which of them a policy allows.

Not here: what is allowed (``candidates``), and which is the shortest (``planning``).
"""
