"""Explores the protocol: production state machines under a scheduler that chooses every event."""
