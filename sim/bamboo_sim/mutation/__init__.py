"""The mutation score of the core: how many small changes of its code the tests notice. Not here:
faults that the explorer must find, which are in protocol/planted.

Public: nothing; commands, benchmarks and tests start from here.
"""
