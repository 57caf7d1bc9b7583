"""Boards, recording rules and alerts as data, and the chart's files of them. Nothing here asks a
Prometheus.

Public: ``boards``, ``panels``, ``rules``, ``source``.
"""
