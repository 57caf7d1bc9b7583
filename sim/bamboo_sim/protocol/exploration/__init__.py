"""The search for a history that breaks a promise, at random or exhaustively, for a given time; how
histories are counted and recorded. Not here: what happens in them, which is in families.

Public: every module.
"""
