"""Which tasks a step still needs, from what agents hold. Not: who computes them, and when."""
