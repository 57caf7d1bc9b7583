"""Who takes part in a job, from which facts it goes on, and when it is over. Not: pods."""
