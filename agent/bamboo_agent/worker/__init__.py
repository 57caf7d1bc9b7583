"""The worker process: feeds the executor and performs its effects. Not here: set-up and tensors.

Public: ``event_log``, ``main``, ``shell``.
"""
