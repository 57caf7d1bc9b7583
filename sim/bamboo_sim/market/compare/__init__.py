"""All systems on one fleet, with one model and one network: what `bamboo sim compare` prints. Not
here: systems, step times and fleets themselves.

``setting.py`` says what all are given alike, ``assumptions.json`` with which prices and models;
``times.py`` gets the step times that they ask for; ``comparison.py`` runs them and ranks; and
``command.py`` prints.

Public: nothing; the command, benchmarks and tests start from here.
"""
