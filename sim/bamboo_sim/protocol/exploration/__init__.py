"""The search for a history that breaks a promise, at random or exhaustively, for a given time; how
histories are counted and recorded. What happens in them is described in families.

Public: every module.
"""
