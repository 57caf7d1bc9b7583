"""One led job: what the cluster means for its arbiter, and what its arbiter means for users.

Rules of training belong to arbiter; pods, conditions and limits belong to controller.

Public: ``leadership``, ``training``, ``durable_writer``, ``orders`` (of plans, and their answers).
"""
