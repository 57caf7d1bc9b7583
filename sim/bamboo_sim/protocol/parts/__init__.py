"""What a world is made of: the job, the network, messages, symbolic payloads, and what a violation
is. Nothing here knows the world.

Public: every module.
"""
