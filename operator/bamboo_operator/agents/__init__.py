"""The gRPC service for agents, and bounds on what peers can make the operator hold and do. Not
here: what becomes of a message; that belongs to arbiters.

Public: ``servicer``.
"""
