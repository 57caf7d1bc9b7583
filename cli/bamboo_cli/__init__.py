"""The ``bamboo`` command, which asks only the API server. Not here: code of operator and agents."""
