"""What all policies are given alike: a job, its step times, and the seats of a grid; not a rule of
one system.

Public: nothing; the policies, benchmarks and tests start from here.
"""
