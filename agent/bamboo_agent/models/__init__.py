"""Models that come with Bamboo, each a factory for ``spec.model``."""
