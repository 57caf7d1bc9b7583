"""Everything that happens in a world: the choice of the next event, the shells of agents and
operators, time, and the faults that can be injected. State belongs to world; nothing here judges
it.

Public: ``injectors``, ``simulation``.
"""
