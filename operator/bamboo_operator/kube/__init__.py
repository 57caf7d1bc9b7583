"""The API server: how it is asked and watched, and what its objects mean in the core's words.
``api`` is the port with the paths; only ``client`` imports the Kubernetes client, and only
``informer`` imports kopf. Not here: what the operator does about an object.

Public: every module.
"""
