"""Faults planted into the product, which exploration must find."""
