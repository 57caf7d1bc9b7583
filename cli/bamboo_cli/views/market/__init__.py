"""The market simulator's answers as pages, in HTML with inline drawings and in Markdown, made from
the JSON that it prints. Not here: simulating; the simulator is a program of its own.

Public: ``pages``.
"""
