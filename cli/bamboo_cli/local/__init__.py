"""A job on this machine: what is changed in its spec, and the program that trains it. What is drawn
of it does not belong here.

Public: every module.
"""
