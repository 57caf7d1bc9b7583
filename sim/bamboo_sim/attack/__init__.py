"""Attacks on agents and operator: real processes, real sockets, made-up bytes and manifests."""
