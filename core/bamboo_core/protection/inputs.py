"""The inputs of a verdict, in words and figures for users, with the source of each figure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from bamboo_core.protection.choice import Facts


class Source(StrEnum):
    """Where a figure is from."""

    MEASURED = "Measured"  # by the agents, or from what the job has lived through
    COMPUTED = "Computed"  # by the planner, from other figures
    SPEC = "Spec"
    ASSUMED = "Assumed"


@dataclass(frozen=True)
class Input:
    """One figure. Its name says the unit."""

    name: str
    value: float
    source: Source


def inputs(facts: Facts) -> tuple[Input, ...]:
    """All inputs of the cost model but the grid, and without what is not known."""

    def seen(name: str, field: str, otherwise: Source = Source.ASSUMED) -> Input:
        is_measured = field in facts.measured
        return Input(name, getattr(facts, field), Source.MEASURED if is_measured else otherwise)

    gbps = replace(
        seen("bandwidthGbps", "bytes_per_s", Source.SPEC), value=facts.bytes_per_s * 8 / 1e9
    )
    share = Source.MEASURED if "empty_share" in facts.measured else Source.COMPUTED
    memory = [seen("deviceMemoryBytes", "memory_bytes")] if facts.memory_bytes else []
    return (
        seen("hazardPerAgentHour", "hazard_per_agent_hour"),
        seen("stepSeconds", "step_s", Source.COMPUTED),
        seen("forwardSeconds", "forward_s"),
        seen("backwardSeconds", "backward_s"),
        Input("idleSeconds", facts.idle_s, Source.COMPUTED),
        Input("aheadSeconds", facts.ahead_s, Source.COMPUTED),
        Input("copyingSeconds", facts.copying_s, Source.COMPUTED),
        Input("delaySeconds", facts.delay_s, Source.COMPUTED),
        Input("tightSeconds", facts.tight_s, Source.COMPUTED),
        seen("stageBytes", "parameter_bytes"),
        seen("activationBytes", "activation_bytes"),
        *memory,
        Input("hostMemoryBytes", facts.host_memory_bytes, Source.SPEC),
        gbps,
        Input("hostBandwidthGbps", facts.host_bytes_per_s * 8 / 1e9, Source.ASSUMED),
        seen("stopSeconds", "stop_s"),
        seen("refillSeconds", "refill_s"),
        Input("emptySeatShare", facts.share, share),
        Input("emptySeatsTogether", facts.empty_together, share),
        seen("restartSeconds", "restart_s"),
        Input("checkpointSeconds", facts.checkpoint_s, Source.COMPUTED),
    )
