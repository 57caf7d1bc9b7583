"""The parts of benchmarks/against_peers.py; the modules that end in ``_host`` are programs."""
