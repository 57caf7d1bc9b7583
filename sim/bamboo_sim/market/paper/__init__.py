"""What published Bamboo gained, computed again: the table of its slides, and rows of its authors'
simulator. Not here: how a fleet is made and counted.

Public: nothing; commands, benchmarks and tests start from here.
"""
