"""Which agents are alive, stuck or slow, by what they and others say.

What follows from it belongs to arbiter.

Public: every module.
"""
