"""Core messages <-> proto messages, and the channel options. Nothing here knows what they mean."""
