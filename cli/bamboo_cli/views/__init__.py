"""What the command shows or writes, as people see it: texts for a terminal, SVG drawings and the
HTML page. Not here: fetching and computing.

Public: every module.
"""
