"""One system in each file: how it answers a market. Not here: fleets, and step times.

``base`` has what all of them are given alike; ``rivals`` and ``ours`` have the systems that are
compared, and ``assumed`` those of which only prose is known. ``rows.py`` names them. The other
files here belong to the published table. Parameters are data: each folder has them with their
sources in ``parameters.json``, and where a publication's own value is another, that one too.

Public: nothing; the tables and the benchmarks take policies from here.
"""
