"""How long steps take in each state of a grid, by the planner's programs and their dry run, and how
long pauses take in virtual time; not what a system does with its nodes, and not money.

``models.py`` has the models and ``networks.py`` the networks, with sources. ``dry.py`` times one
step, ``patterns.py`` says which seats are empty after losses, ``table.py`` keeps all steps of a job
on disk, and ``pauses.py`` its pauses. Pure, apart from ``kept.py``, the files.

Public: nothing; the market simulator, benchmarks and tests start from here.
"""
