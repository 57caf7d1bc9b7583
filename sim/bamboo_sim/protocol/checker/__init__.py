"""The invariants of every history. How histories are chosen belongs to exploration."""
