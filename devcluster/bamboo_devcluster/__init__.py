"""A real Kubernetes control plane on this machine; its nodes run pods as local processes. Nothing
here knows Bamboo.
"""
