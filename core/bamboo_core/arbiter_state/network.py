"""The network between agents, as the next plan counts with it: by the spec, and as measured."""

from __future__ import annotations

from dataclasses import replace

from bamboo_core.api.spec import JobSpec
from bamboo_core.arbiter_state.state import InForce, State
from bamboo_core.evidence.wire import has_changed


def spec_of_plan(state: State) -> JobSpec:
    """The spec with the network of the next plan. The user may change it while the job runs."""
    spec, desired = state.job.spec, state.desired
    if desired is None or desired.bandwidth_gbps in (None, spec.transport.bandwidth_gbps):
        return spec  # the same object, by which the explorer knows its plans
    return replace(spec, transport=replace(spec.transport, bandwidth_gbps=desired.bandwidth_gbps))


def most(state: State) -> float:
    """Bytes per second by the spec: the upper bound of what is measured."""
    return spec_of_plan(state).transport.bytes_per_s


def is_worth_a_plan(state: State, in_force: InForce) -> bool:
    """Whether the plan in force has dealt lost work for clearly another network than there is."""
    now = min(most(state), state.wire.settled)
    return bool(in_force.plan.holes) and has_changed(in_force.network, now)
