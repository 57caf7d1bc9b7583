"""Which grid, mode and nodes to take for a job: what `bamboo sim advise` prints. Not here: systems
of others, and step times themselves.

``renting.py`` makes the fleet that a job rents from what a market offers, ``candidates.py`` says
what is tried, ``search.py`` tries it, ``recommendation.py`` chooses, ``shown.py`` has texts and
JSON, and ``command.py`` prints.

Public: nothing; the command and tests start from here.
"""
