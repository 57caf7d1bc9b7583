"""Fleets, what a policy may say of them, and what comes of it; not policies themselves, nor figures
of a publication.

Public: nothing; the other folders of the market simulator, benchmarks and tests start from here.
"""
