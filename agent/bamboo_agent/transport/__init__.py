"""How items go from agent to agent: one interface, `memory` (one process) and `tcp`."""
