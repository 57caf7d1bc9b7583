"""Between two agents, messages of one lane are received in the order in which they are sent.

The transport relies on it, since it limits what it keeps unread. Symbols do not: a simulated agent
takes an item by its name. So every set of programs that the planner makes is looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bamboo_core.model.ids import AgentId
from bamboo_core.model.items import BULK, Item, Kind
from bamboo_core.model.program import Op, Program
from bamboo_core.planning.requests import Continuations, Decision, PlanResult
from bamboo_sim.protocol.parts.violation import Violation


def check_order(results: Iterable[PlanResult]) -> None:
    """Raise a Violation if a program receives out of order. Records of files are sent late."""
    for result in results:
        if isinstance(result, Decision):
            _check({a: d.resume for a, d in result.directives.items()})
        elif isinstance(result, Continuations):
            _check({a: c.steady for a, c in result.directives.items()})
            _check({a: c.final for a, c in result.directives.items()})


def _check(programs: Mapping[AgentId, Program]) -> None:
    sent: dict[tuple[AgentId, AgentId, bool], list[Item]] = {}
    received: dict[tuple[AgentId, AgentId, bool], list[Item]] = {}
    for agent, program in programs.items():
        for instruction in program:
            item, peer = instruction.item, instruction.peer
            if item is None or item.kind is Kind.FILE:
                continue
            if instruction.op is Op.SEND:
                sent.setdefault((agent, peer, item.kind in BULK), []).append(item)
            elif instruction.op is Op.RECV:
                received.setdefault((peer, agent, item.kind in BULK), []).append(item)
    for lane, items in received.items():
        if items != sent.get(lane):
            source, target, _ = lane
            raise Violation(f"{target} receives from {source} out of order")
