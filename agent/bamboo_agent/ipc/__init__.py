"""What an agent's processes and threads share: pipe, shared memory, mailbox. Not here: torch.

Public: every module.
"""
