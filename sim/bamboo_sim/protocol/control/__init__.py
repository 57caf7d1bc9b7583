"""The simulated control plane: operators around the production Leadership, API server, planner."""
