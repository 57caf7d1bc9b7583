"""A real Prometheus that scrapes, or holds two hours of a story, and answers every query of boards
and rules. Pictures are drawn from its answers.

Public: ``rehearsal``.
"""
