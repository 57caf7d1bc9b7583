"""A real Prometheus that scrapes, or holds two hours of a story, and answers every query of boards
and rules; pictures of its answers. Not here: the queries.

Public: ``rehearsal``.
"""
