"""The bamboo command."""
