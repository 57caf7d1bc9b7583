"""Prometheus metrics. Series about jobs are made at scrape time and end with the job.

No scraper overwrites the labels job_namespace and training_job. No label has unbounded values.
"""
