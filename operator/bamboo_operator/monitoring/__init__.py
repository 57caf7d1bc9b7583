"""Figures for whoever watches the operator: metrics, probes, and the HTTP servers for both. Not
here: how the figures of a job come about.

Public: ``health``, ``job_figures``, ``metrics_server``, ``registry``.
"""
