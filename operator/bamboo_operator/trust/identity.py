"""The names by which agents know the operator, and by which it knows their tokens."""

from __future__ import annotations

SERVER_NAME = "bamboo-operator"
"""Name in the operator's certificate. Agents check it, whatever address they connect to."""

AUDIENCE = "bamboo-operator"
"""Audience of the agents' tokens."""
