"""How is a run drawn? Elements of SVG, panels over time, and the drawings made of them; nothing
about pages or terminals.

Public: ``charts``, ``elements``, ``picture``.
"""
