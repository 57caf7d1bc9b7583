"""Instructions on tensors: layers, forward and backward, sums, votes, batches. Not: when to run
them."""
