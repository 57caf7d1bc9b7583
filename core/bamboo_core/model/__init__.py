"""What a step is made of: names of agents and items, programs, the canonical sum. Not: who does it,
or when."""
