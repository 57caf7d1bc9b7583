"""Proofs of identity between operator and agents: certificates, tokens, seals of pods. Not here:
how many strangers are heard, and how fast; that belongs to agents.

Public: every module.
"""
