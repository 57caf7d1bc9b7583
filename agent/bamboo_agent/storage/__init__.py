"""Checkpoints: written in the background, read back. Not: when to write one."""
