"""Simulation of Bamboo: the protocol explorer and fleets of real processes on one machine."""
