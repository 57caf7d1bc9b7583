"""Files of checkpoints that are being written, and what waits for them.

Files are written slowly, in the background, so only the end of the job waits for them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from bamboo_core.model.ids import AgentId
from bamboo_core.model.items import Item, Kind
from bamboo_core.model.program import Instruction, Op, Program
from bamboo_core.model.rules import Prepared


@dataclass
class PendingFiles:
    """Of one agent."""

    saving: set[Item] = field(default_factory=set)  # being written
    owed: dict[Item, tuple[AgentId, ...]] = field(default_factory=dict)  # peers that need a file
    seals: tuple[Prepared, ...] = ()  # wait for files

    def copy(self) -> PendingFiles:
        """An independent copy."""
        return PendingFiles(self.saving.copy(), self.owed.copy(), self.seals)

    @property
    def are_due(self) -> bool:
        """Whether files of this agent, or that it waits for, are outstanding."""
        return bool(self.saving or self.owed or self.seals)

    def begin_plan(self) -> None:
        """Nobody needs what an older plan wanted; what is being written is written."""
        self.owed, self.seals = {}, ()

    def begin(self, save: Instruction) -> None:
        """A SAVE runs."""
        self.saving.update(files_of(save))

    def give_up(self, save: Instruction) -> None:
        """A SAVE has done nothing."""
        self.saving.difference_update(files_of(save))

    def puts_aside(self, task: Prepared, held: Collection[Item]) -> bool:
        """Whether the program goes on without this instruction, which waits for files."""
        instruction = task.instruction
        if instruction.op is Op.SEAL:
            self.seals += (task,)
            return True
        if instruction.op is Op.SAVE:
            return all(f in held or f in self.saving for f in files_of(instruction))
        item = instruction.item
        if item is None or item.kind is not Kind.FILE:
            return False
        if instruction.op is Op.SEND and item not in held:
            self.owed[item] = (*self.owed.get(item, ()), instruction.peer)
        return instruction.op is Op.RECV or item not in held

    def awaited(self, programs: Iterable[Program], held: Collection[Item]) -> Instruction | None:
        """The RECV of one of these programs that must bring a record, if nothing but a seal waits;
        None: this agent's own files are not written."""
        if self.saving or self.owed:
            return None
        seal = self.seals[0]
        lacking = {x.lo for x in seal.items if x.kind is Kind.FILE and x not in held}
        step = seal.instruction.step
        for program in programs:
            for x in program:
                item = x.item if x.op is Op.RECV else None
                if item is not None and item.kind is Kind.FILE and item.lo in lacking:
                    return x._replace(step=step, item=Item.file(step, item.lo))
        return None


def files_of(save: Instruction) -> list[Item]:
    """The records that a SAVE makes."""
    return [Item.file(save.step, x) for x in range(save.lo, save.hi)]
