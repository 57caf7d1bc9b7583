"""Families of histories: which faults come at which events. How many of them run, and for how long,
is not decided here.

Public: ``by_name``, ``losses``.
"""
