"""What is wrong with the manifest of a BambooJob; nothing of a job that runs, or of
validation losses.

Public: ``reading`` (from a manifest to its spec), ``pod_rules`` (what pods may have),
``overridden`` (what pods do not get), ``reserved`` (what belongs to Bamboo in a pod),
``server_rules`` (those of the API server).
"""
