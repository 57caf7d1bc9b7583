"""How does something look that the command shows or writes? Texts for a terminal, SVG drawings and
the HTML page; nothing is fetched or computed here.

Public: every module.
"""
