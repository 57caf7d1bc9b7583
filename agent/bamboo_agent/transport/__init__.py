"""How items travel between agents: one interface, two transports. Not here: what an item holds.

`memory` is for agents of one process, `tcp` for all others.

Public: ``base``, ``handshake``, ``links``, ``memory``, ``stream``, ``tcp``, ``wire``.
"""
