"""Between an agent's processes and threads: pipe, shared memory, mailbox. Not here: torch.

Public: every module.
"""
