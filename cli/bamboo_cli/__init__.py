"""The ``bamboo`` command, by the API server alone. Not here: code of operator and agents."""
