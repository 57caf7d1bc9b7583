"""Drawings of a run: elements of SVG, panels over time, and the drawings made of them. Not here:
pages and terminals.

Public: ``elements``, ``page_charts``, ``picture``, ``plots``.
"""
