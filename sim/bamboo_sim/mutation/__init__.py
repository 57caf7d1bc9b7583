"""The mutation score of the core: how many small changes of its code the tests notice. Faults that
the explorer must find are in protocol/mutants.

Public: nothing; started as a command.
"""
