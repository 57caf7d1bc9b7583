"""How does it look in a terminal? The console, tables, screens and displays; no HTML and no SVG.

Public: ``console``, ``diagnosis``, ``job_screen``, ``jobs_table``, ``live_display``, ``plan``,
``run_report``.
"""
