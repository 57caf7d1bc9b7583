"""A job on this machine: what is changed in its spec, and the program that trains it.

Public: every module.
"""
