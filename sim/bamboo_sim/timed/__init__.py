"""The ``timed`` back end: production agents and arbiter in virtual time, with declared task times.

Read ``declared.py`` (what a run is told), ``agent.py`` and ``fleet.py``; ``recovery.py`` measures.
"""
