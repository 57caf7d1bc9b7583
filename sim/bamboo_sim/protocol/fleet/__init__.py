"""Real supervisors and workers on this machine, led by an arbiter in this process."""
