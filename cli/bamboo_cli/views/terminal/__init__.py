"""Views for a terminal: the console, tables, screens and displays. Not here: HTML and SVG.

Public: ``console``, ``diagnosis``, ``job_screen``, ``jobs_table``, ``live_display``,
``local_run``, ``plan``, ``run_report``, ``weights``.
"""
