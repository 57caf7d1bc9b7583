"""The estimate for the job of a file: what it will look like, and cost. It reads the file, plans
the job and measures its layers. Not here: anything that needs a cluster.

Public: every module.
"""
