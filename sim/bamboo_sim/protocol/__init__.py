"""Model checking of the protocol: the production state machines under a controlled scheduler."""
