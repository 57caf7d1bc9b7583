"""Real workers without supervisors or an operator, for tests of what they compute."""
