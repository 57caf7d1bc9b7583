"""All systems on one fleet, with one model and one network: what `bamboo sim compare` prints. Not
here: systems, step times and fleets themselves.

``setting.py`` says what all are given alike, ``assumptions.json`` with which prices and models, and
``profiled.py`` reads a model of the user;
``times.py`` gets the step times that they ask for; ``comparison.py`` runs them and ranks, with
``timeline.py`` for what happens over time and ``intervals.py`` for how sure a figure is.
``verdict.py`` says where ours stands and why, and ``several.py`` how systems stand on several
fleets. ``command.py`` prints, by ``text.py`` and ``record.py``; ``progress.py`` says how far it is.

Public: nothing; the command, benchmarks and tests start from here.
"""
