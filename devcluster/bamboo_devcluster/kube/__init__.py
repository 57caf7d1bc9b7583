"""The API server as its clients see it: a client, certificates, and the forms of times and
quantities. Not here: how the server runs, and what its objects mean.

Public: every module.
"""
