"""Which agent sits in which seat and holds which layers. Not: what it computes there."""
