"""The operator as its own process on a real API server, under thousands of fake agents."""
