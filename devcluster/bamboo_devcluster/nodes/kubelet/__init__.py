"""The node kind `kubelet`: real kubelets with containerd, each in namespaces of its own. Not here:
pods, which those kubelets run.

Public: ``leftovers``, ``preparation``, ``prerequisites``.
"""
