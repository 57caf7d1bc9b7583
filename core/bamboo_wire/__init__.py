"""Core types <-> messages: the only place where both names meet."""
