"""How items travel between agents: one interface, with `memory` (one process) and `tcp`."""
