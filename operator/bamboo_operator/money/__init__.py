"""The cost of a job's nodes, by the prices in the chart's values. Not here: when the status is
written, and how metrics are served.

Public: every module.
"""
