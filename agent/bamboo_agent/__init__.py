"""The agent: a supervisor process without torch and a worker with torch. Not here: decisions."""
