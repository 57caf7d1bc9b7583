"""Real workers without supervisors or an operator, for tests of what they compute, and the plain
programs with which they are compared. Whole jobs belong to fleet.

Public: ``system_seeds``. Commands, benchmarks and tests start from the others.
"""
