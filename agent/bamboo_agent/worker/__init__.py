"""The worker's process: feeds the executor and performs its effects. Not: tensors."""
