"""Alerts on their faults and in times without a fault, by promtool's unit tests. Not here: the
alerts, and a Prometheus that scrapes.

Public: ``cases``, ``lives``, ``promtool``, ``verdict``.
"""
