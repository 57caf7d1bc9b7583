"""Recorded fleets: readers for each shape of file, what they count, and fleets made of them. Not
here: policies, and markets that are drawn.

Public: nothing; commands and tests start from here.
"""
