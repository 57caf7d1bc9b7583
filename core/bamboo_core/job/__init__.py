"""One led job, from the cluster to its arbiter and back to users; not the rules of either.

Rules of training belong to arbiter; pods, conditions and limits belong to controller.

Public: ``leadership``, ``training_view``, ``disruptions`` (how many agents an eviction must leave),
``durable_writer``, ``pace``, ``orders`` (of plans, and their answers), ``raised_steps``.
"""
