"""Boards, recording rules and alerts as data, and the chart's files of them. Nothing here asks a
Prometheus.

Public: ``alert``, ``boards``, ``job_alerts``, ``operator_alerts``, ``panels``, ``rules``,
``source``.
"""
