"""How has an agent ended, whose doing was it, and which seats wait because of that? Not here: what
is counted, and for how long seats wait.
"""
