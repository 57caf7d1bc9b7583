"""Which tasks a step still needs, given what agents hold; not who computes them, or when.

``closure.missing(goals, holdings)`` returns the task graph. In order of use:

1. ``tasks``: the data: :class:`Holdings` of one agent, tasks, transfers, the finished graph.
2. ``holdings``: an index over all holdings: who can send which item, which versions are usable.
3. ``builder``: the graph so far, and how an agent gets an item (holds it, receives it, waits for
   the task that makes it).
4. ``versions``: brings every layer to the version of the target step: UPDATE, copy, LOAD or INIT.
5. ``gradients``: forwards, backwards, FOLD and REDUCE, as far as their results are missing.
6. ``periodic``: validation and checkpoints.
7. ``closure``: calls 2 to 6 and adds VOTE, COMMIT, UPDATE, END and EXIT around them.

``reports.impossible(report, extent)`` says what in a report cannot be; nothing else may be indexed.

Public: ``closure``, ``holdings``, ``reports``, ``tasks``.
"""
