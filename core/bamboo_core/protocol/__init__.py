"""What agents and operator say, and the agent's two state machines. Not: the arbiter."""
