"""The simulated world: agents, operator and network around the production state machines."""
