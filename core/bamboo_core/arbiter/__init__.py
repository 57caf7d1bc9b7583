"""Who takes part in a job, from which facts it goes on, and when it is over.

Not here: pods, conditions.

Public: ``arbiter`` (the state machine), ``events`` (what goes in and out), ``durable`` (its facts
as JSON).
"""
