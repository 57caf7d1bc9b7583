"""Frames' large tensors over torch.distributed. Not here: the tcp link that announces them.

docs/adr/0024-groups-carry-pieces-that-tcp-announces.md says what holds at every moment.

Public: every module.
"""
