"""One system on one fleet, with its timeline: what `bamboo sim run` prints. Not here: systems, and
comparing them.

``names.py`` has the names of systems as users write them, ``run.py`` runs one, ``shown.py`` has
texts and JSON, and ``command.py`` prints.

Public: nothing; the command and tests start from here.
"""
