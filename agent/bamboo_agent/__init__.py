"""The agent: a supervisor process without torch and a worker process with torch."""
