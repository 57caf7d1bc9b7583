"""The status of a BambooJob: how it is read, what is written into it, and when. Not here: the text
of a condition, which the core's controller decides.

Public: ``checkpoints``, ``durable_facts``, ``estimate``, ``protection``, ``statuses``, ``totals``,
``writer``.
"""
