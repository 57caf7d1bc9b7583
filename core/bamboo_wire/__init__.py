"""Core messages <-> proto: the only place where both names meet."""
