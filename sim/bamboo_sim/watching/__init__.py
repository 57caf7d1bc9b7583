"""Boards, recording rules and alerts: their definitions, and a real Prometheus that tries them. The
metrics themselves belong to operator and agent.
"""
