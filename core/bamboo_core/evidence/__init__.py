"""Which agents are alive, stuck, slow or about to go; not what follows from it.

Sources are the agents' own words, those of their peers, and their nodes.

Public: every module.
"""
