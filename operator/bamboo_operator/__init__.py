"""The operator: a shell around the core's decisions. Not here: decisions, and agents' work."""
