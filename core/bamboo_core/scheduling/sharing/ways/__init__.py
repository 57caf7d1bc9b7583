"""The ways to share lost work: each is one file with one function, step work -> work map.

Not here: which of them a policy allows (``candidates``), and which is the shortest (``planning``).
"""
