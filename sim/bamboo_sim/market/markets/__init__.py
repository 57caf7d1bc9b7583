"""Markets that are drawn by a seed: named ones, ones fitted to a recorded fleet, and the way in to
all sources of fleets. Not here: readers of recorded fleets, and policies.

``parameters.py`` says what a market is, ``profiles.json`` has the named ones with the source of
each number, ``drawn.py`` draws. ``fit.py`` measures a recorded fleet, ``market_files.py`` writes
the market that follows and reads it back, and ``opening.py`` takes a name or a file of any shape.

Public: nothing; commands and tests start from here.
"""
