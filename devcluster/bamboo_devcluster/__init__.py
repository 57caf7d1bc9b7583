"""A real Kubernetes control plane on this machine, with nodes whose pods run here."""
