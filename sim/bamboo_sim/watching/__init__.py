"""Boards, recording rules and alerts for Prometheus and Grafana, and their rehearsal."""
