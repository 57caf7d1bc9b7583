"""Who computes which task, in which order, as checked programs. Not: which tasks there are."""
