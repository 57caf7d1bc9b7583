"""The shell around each led job's arbiter: streams, the planner's thread, heartbeats. Not here:
what an arbiter decides, and how agents reach it.

Public: ``job_actor``, ``led_jobs``, ``ports``, ``sessions``.
"""
