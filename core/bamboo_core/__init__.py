"""Decisions and protocol as pure code: no clock, no I/O, no randomness, no torch."""

__version__ = "0.1.0"
