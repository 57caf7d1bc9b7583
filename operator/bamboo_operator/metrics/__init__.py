"""Prometheus metrics of the operator and its jobs."""
