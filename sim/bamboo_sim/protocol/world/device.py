"""A simulated device, which completes instructions after their issue, in order.

What it has not completed is no result yet: whoever sends it, reports it, or frees what it still
reads would meet garbage on a real device.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bamboo_core.model.ids import AgentId
from bamboo_core.model.items import Item, Kind
from bamboo_core.model.rules import Prepared
from bamboo_core.protocol.messages import AgentReport
from bamboo_sim.protocol.parts.violation import Violation


@dataclass(frozen=True)
class Device:
    """Instructions that it has been given and has not completed."""

    tasks: tuple[Prepared, ...] = ()

    @property
    def is_busy(self) -> bool:
        return bool(self.tasks)

    @property
    def first(self) -> Prepared:
        """The oldest."""
        return self.tasks[0]

    def with_one(self, task: Prepared) -> Device:
        """It has been given one more."""
        return Device((*self.tasks, task))

    def without_first(self) -> Device:
        """It has completed the oldest."""
        return Device(self.tasks[1:])

    def check_sent(self, agent: AgentId, item: Item) -> None:
        """Violation if the item has not been completed."""
        if item in self._made():
            raise Violation(f"{agent} sends {item}, which its device has not completed")

    def check_accepted(self, agent: AgentId, item: Item) -> None:
        """Violation if it is about to make the item, or another version of the layer."""
        if item in self._made():
            raise Violation(f"{agent} takes {item} from a peer while its device makes it")

    def check_freed(self, agent: AgentId, items: Iterable[Item]) -> None:
        """Violation if an instruction that it has not completed reads one of them."""
        if not self.tasks:
            return
        read = {item for task in self.tasks for item in _reads(task)}
        if freed := sorted(read.intersection(items)):
            raise Violation(f"{agent} frees {freed[0]}, which its device still reads")

    def check_reported(self, agent: AgentId, report: AgentReport) -> None:
        """Violation if the agent reports what has not been completed."""
        versions = {Item.ver(version, layer) for layer, version in report.versions.items()}
        if early := sorted(self._made() & (report.items | versions)):
            raise Violation(f"{agent} reports {early[0]}, which its device has not completed")

    def _made(self) -> set[Item]:
        made = {item for task in self.tasks for item in task.items_made}
        return made | {Item.ver(v, layer) for task in self.tasks for layer, v in task.versions_made}


def _reads(task: Prepared) -> set[Item]:
    own = {item for item in task.gone if item.kind is not Kind.VER}
    return {*task.items, *(Item.ver(v, layer) for layer, v in task.versions)} - own
