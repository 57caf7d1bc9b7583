"""Decisions and protocol as pure code. Not here: clocks, I/O, randomness, torch."""

__version__ = "0.1.0"
