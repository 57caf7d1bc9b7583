"""What users see: the spec, the pod template, events, reasons, outcomes.

Not here: what is done about a job.

Public: every module.
"""
