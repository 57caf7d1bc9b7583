"""From the reports of stopped agents to a plan and its programs; not when to plan.

Public: ``planner`` and ``requests``; ``lanes``, for what is computed ahead; ``redone``, which
counts what a loss costs; ``comparison``, of ways to share lost work; ``step_shape``. The folder
displays shows plans to people.
"""
