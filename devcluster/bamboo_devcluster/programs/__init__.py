"""Where programs come from: a cache, a download, or a build from the Go modules in tools/. Not
here: how they are run.

Public: ``binaries``, ``kubeconform``, ``kueue``, ``prometheus``, ``versitygw``.
"""
