"""The Kubernetes operator: informer, reconcile shell, gRPC servicer, Lease, status."""
