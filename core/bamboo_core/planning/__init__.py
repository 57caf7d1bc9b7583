"""From the reports of stopped agents to a plan and its programs.

Not here: when to plan.

Public: ``planner``, ``requests``, and ``step_shape`` and ``show`` to look at schedules.
"""
