"""One history: its faults, its replay, its shortest form, and what may follow it. Nothing here
chooses histories.

Public: every module.
"""
