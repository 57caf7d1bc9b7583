"""From the reports of stopped agents to a plan and its programs.

Not here: when to plan.

Public: ``planner`` and ``requests``; ``step_shape`` and ``show``, which display schedules.
"""
