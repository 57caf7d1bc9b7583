"""What will the job of a file look like, and cost? Reads the file, plans the job and measures its
layers, without a cluster.

Public: every module.
"""
