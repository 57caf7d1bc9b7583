"""What happens in `bamboo quickstart`? A cluster on this machine, a job with injected faults, the
same job without, and the closing report; nothing that other commands use.

Public: ``local_cluster``, ``scenario``.
"""
