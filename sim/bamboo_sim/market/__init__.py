"""The market simulator: what a job costs on spot nodes, and how far each way to survive gets. It is
pure and visits events only: steps are counted. Not here: payloads, processes, and virtual time.

Three questions are apart, so that a new answer to one changes none of the others:

- **Which nodes come and go?** A market is anything that gives FleetEvents in order:
  ``simulation/hourly.py`` draws them, ``traces`` reads recorded ones, and ``markets`` fits to
  them and draws. ``markets/opening.py`` takes all of these by name or file. A fleet follows from
  (market, seed) alone, so every policy meets the same one. Zones, capacity types and prices are of
  nodes.
- **What does a system do then?** A policy (``simulation/policy.py``) is pure: from its state, the
  fleet and the news, the next state, the end of a pause with its cause, and what is lost. States
  are its own values; the engine reads ``serving`` alone. A policy that checks each five minutes,
  waits for others to join, or decides at the end of a step asks to be called then. Detection and
  network are parts of its pauses. One file each in ``policies``.
- **How fast is a state?** ``rate`` of the policy, from whatever table of step times it is given:
  numbers of a publication, or dry runs of the planner (``step_times``, which has pauses, too).

``simulation/engine.py`` brings them together and believes nobody: work that the nodes cannot have
done is an error. ``outcome.py`` has the results, and ``events.py`` the order of events at one
instant. ``audit.py`` compares what there is with what all nodes can have done. The published table
is ``paper/table.py``; its assumptions, with sources, are beside it. ``compare`` runs all systems on
one fleet, with the same bill, and ``single`` one of them, with all that happens to it.
``advise`` searches what ours should rent.

Public: nothing; commands, benchmarks and tests start from here.
"""
