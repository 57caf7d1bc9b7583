"""One reconcile after another: the queue of jobs, its workers, and what they do about one job. Not
here: the decision, which the core's controller makes.

Public: ``leftovers``, ``ports``, ``queue_workers``, ``reconciler``, ``workqueue``.
"""
