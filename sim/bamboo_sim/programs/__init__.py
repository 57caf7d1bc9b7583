"""What every program that measures shares: its arguments, the least that a random sample must do,
and the files of its results. Nothing here knows what is measured.

Public: every module.
"""
