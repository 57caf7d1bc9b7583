"""Planned steps as people see them: drawings, and what one loss would cost; not what is planned.

Not here: the shape of a step for the cost model (``step_shape``, beside this folder).
Public: ``preview`` and ``between_steps``, and the command ``show``.
"""
