"""Real workers without supervisors or an operator, for tests of what they compute, and the plain
programs with which they are compared. Whole jobs belong to fleet.

Public: ``plans``, ``process_fleet``, ``system_seeds``; commands, benchmarks and tests start from
the others.
"""
