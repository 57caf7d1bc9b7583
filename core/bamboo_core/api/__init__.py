"""What users see: the spec, the pod template, reasons, outcomes. Not: what is done about a job."""
