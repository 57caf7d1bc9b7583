"""The agent: supervisor without torch, worker with torch."""
