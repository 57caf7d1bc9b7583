"""What a user's loss returns for a micro-batch, and what a step makes of it. Not here: gradients.

Public: every module.
"""
