"""Between the processes and threads of one agent: a pipe, shared memory, wake-ups. No torch."""
