"""What users write and see: spec, events, reasons, outcomes, totals; not what is done about a job.

Public: every module.
"""
