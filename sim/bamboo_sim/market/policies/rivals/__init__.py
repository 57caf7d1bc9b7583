"""Other systems, one in each file, by what their publications say of them (rivals.md 4); nothing of
ours, and no system of which only prose is known.

Public: nothing; tables, benchmarks and tests start from here.
"""
