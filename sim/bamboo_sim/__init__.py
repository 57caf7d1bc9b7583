"""Simulation of Bamboo: the explorer, virtual time, and fleets of real processes on one machine. It
may import every package, and no product package imports it.
"""
