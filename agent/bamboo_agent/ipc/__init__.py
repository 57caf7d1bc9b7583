"""Between an agent's processes and threads: pipe, shared memory, mailbox. No torch."""
