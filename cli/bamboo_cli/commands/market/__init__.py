"""The commands about the market of spot nodes. What is about a job on a cluster does not belong
here.

Public: every module: ``sim`` has the commands, and ``simulator`` starts the program.
"""
