"""What the executor keeps of instructions that do not run at once, in the order of the program; it
decides nothing.

Public: ``lane``; for the executor and simulations ``issued``, ``pending_files``.
"""
