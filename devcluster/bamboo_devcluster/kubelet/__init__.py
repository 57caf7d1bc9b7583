"""The node kind `kubelet`: real kubelets with containerd, each in its own namespaces."""
