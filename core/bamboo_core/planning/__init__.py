"""From the reports of stopped agents to a plan and its programs; not when to plan.

Public: ``planner`` and ``requests``; ``lanes``, for what is computed ahead; ``redone``, which
counts what a loss costs; ``preview``, ``step_shape`` and ``show``, which display schedules. The
folder alternatives compares ways to share lost work, and moves.
"""
