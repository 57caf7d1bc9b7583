"""What the operator does about a job's pods and tells its user. Not: training."""
