"""Simulation of Bamboo: the explorer, virtual time, and fleets of real processes on one machine.
Not here: anything that operator, agent or command line import.
"""
