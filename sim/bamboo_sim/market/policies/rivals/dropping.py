"""Sample dropping: the samples of a broken pipeline are missing until new nodes have filled it, as
the slides of Bamboo's talk discuss it. Its rules are those of fixed groups, but the others keep
their step."""

from __future__ import annotations

from bamboo_sim.market.policies.base.job import Job
from bamboo_sim.market.policies.rivals.torchft import Rules, Torchft


class SampleDropping(Torchft):
    """The policy."""

    def __init__(self, job: Job, rules: Rules) -> None:
        super().__init__(job, rules, merges=False)
