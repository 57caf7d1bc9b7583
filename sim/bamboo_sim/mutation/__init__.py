"""Mutation score of the core: how many small changes of its code do the tests notice."""
