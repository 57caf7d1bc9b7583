"""The part of the closure outside training: validation and checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bamboo_core.api.spec import JobSpec
from bamboo_core.graph.builder import GraphBuilder
from bamboo_core.graph.tasks import Dependency, TaskId
from bamboo_core.graph.versions import Versions
from bamboo_core.model.ids import AgentId, Range
from bamboo_core.model.items import Item
from bamboo_core.model.program import Instruction, Op


@dataclass(frozen=True)
class Periodic:
    """Work of a job besides training: validation and checkpoints."""

    evals: int = 0  # micro-batches of the validation set; 0: no validation
    validate_every: int = 0  # steps between validations; 0: only in the epilogue
    saves: bool = False  # write checkpoints
    save_every: int = 0  # steps between checkpoints; 0: only in the epilogue
    is_scored: bool = False  # manifests have a value of the validation of their step

    @staticmethod
    def of(spec: JobSpec, evals: int) -> Periodic:
        """As the spec asks for it. evals: micro-batches of the validation set."""
        return Periodic(
            evals,
            spec.training.validate_every,
            saves=spec.checkpoint is not None,
            save_every=spec.save_every,
            is_scored=spec.best is not None,
        )


class PeriodicTasks:
    """Tasks of one step. ``step``: absolute; None if the program must serve every step."""

    def __init__(
        self,
        builder: GraphBuilder,
        versions: Versions,
        periodic: Periodic,
        *,
        assignment: Mapping[tuple[int, int], AgentId],
        coordinator: AgentId,
        step: int | None,
        final: bool,
    ) -> None:
        self._builder, self._versions, self._periodic = builder, versions, periodic
        self._assignment, self._coordinator = assignment, coordinator
        self._step, self._final = step, final
        self._saves: dict[AgentId, list[tuple[Range, TaskId]]] = {}
        self._files: list[Dependency] | None = None  # what SEAL needs to know of all files
        self.seal: TaskId | None = None

    def _due(self, every: int, first: int) -> bool:
        if self._final:
            return True
        if not every or self._step is None:
            return every > 0
        return self._step >= first and self._step % every == 0

    def _every(self, every: int) -> int:
        return every if self._step is None and every > 1 else 0

    # ------------------------------------------------------------ validation

    def validate(self) -> list[Dependency]:
        """Dependencies of the coordinator, which needs all scores of the validation set."""
        if not self._periodic.evals or not self._due(self._periodic.validate_every, 0):
            return []
        return [w for m in range(self._periodic.evals) if (w := self._score(m)) is not None]

    def _score(self, m: int) -> Dependency | None:
        score = Item.score(0, m)
        if self._builder.exists(score):
            return self._builder.fetch(score, self._coordinator)
        first = len(self._builder.cut) - 1
        while first and not self._builder.exists(Item.eval(0, self._builder.cut[first][0], m)):
            first -= 1
        task: TaskId | None = None
        for stage in range(first, len(self._builder.cut)):
            task = self._forward(stage, m, task)
        assert task is not None
        return self._builder.deliver(score, task, self._coordinator)

    def _forward(self, stage: int, m: int, before: TaskId | None) -> TaskId:
        lo, hi = self._builder.cut[stage]
        agent = self._assignment[stage, m % self._builder.batch.leaves]
        waits: list[Dependency | None] = [*self._versions.dependencies(agent, (lo, hi))]
        if stage:
            entering = Item.eval(0, lo, m)
            if before is None:
                waits.append(self._builder.fetch(entering, agent))
            else:
                waits.append(self._builder.deliver(entering, before, agent))
        every = self._every(self._periodic.validate_every)
        return self._builder.add(agent, Instruction(Op.V, 0, lo, hi, m, every=every), waits)

    def close(self) -> None:
        """The epilogue's COMMIT, which needs no votes: it only collects the scores. SEAL may need
        the same ones."""
        scores = self.validate()
        if self._periodic.is_scored:
            number = self._periodic.evals
            self._seal(Instruction(Op.SEAL, ranges=((0, number),) if number else ()), scores)
        if self._periodic.evals:
            self._builder.add(self._coordinator, Instruction(Op.COMMIT), [*scores, self.seal])

    # ------------------------------------------------------------ checkpoints

    def save(self) -> None:
        """SAVE of every layer by one of its holders, and SEAL on the coordinator, unless it waits
        for the validation.

        Version 0 is never saved, since any agent can build it.
        """
        every = self._periodic.save_every
        if not self._periodic.saves or not self._due(every, 1):
            return
        waits = dict.fromkeys(w for stage in self._builder.cut for w in self._save_stage(stage))
        self._files = [w for w in waits if w is not None]
        if not self._periodic.is_scored:
            self._seal(Instruction(Op.SEAL, every=self._every(every)), ())

    def seal_after(self, commit: Dependency | None) -> None:
        """SEAL whose manifest has a value of the validation, which is in the commit's record."""
        every = self._every(self._periodic.save_every)
        self._seal(Instruction(Op.SEAL, item=Item.commit(0), every=every), [commit])

    def _seal(self, seal: Instruction, waits: Iterable[Dependency | None]) -> None:
        if self._files is not None:
            needs = [*self._files, *waits]
            self.seal = self._builder.add(self._coordinator, seal, needs)

    def saves(self, agent: AgentId, span: Range) -> list[TaskId]:
        """The agent's SAVEs that read layers of the span."""
        lo, hi = span
        own = self._saves.get(agent, ())
        return [task for (a, b), task in own if a < hi and lo < b]

    def _save_stage(self, stage: Range) -> list[Dependency | None]:
        waits: list[Dependency | None] = []
        for lo, hi in self._parts(stage):
            file = Item.file(0, lo)
            if self._builder.exists(file):
                waits.append(self._builder.fetch(file, self._coordinator))
                continue
            task = self._save(lo, hi)
            for layer in range(lo, hi):
                record = Item.file(0, layer)
                waits.append(self._builder.deliver(record, task, self._coordinator))
        return waits

    def _parts(self, stage: Range) -> list[Range]:
        """The whole stage if one agent can save it and no layer is saved, else single layers."""
        layers = range(*stage)
        saved = any(self._builder.exists(Item.file(0, x)) for x in layers)
        if not saved and self._able(stage):
            return [stage]
        return [(x, x + 1) for x in layers]

    def _able(self, span: Range) -> list[AgentId]:
        part = self._builder.takes_part
        return [a for a in self._builder.computing if all(x in part[a] for x in range(*span))]

    def _save(self, lo: int, hi: int) -> TaskId:
        """Assign the SAVE to the agent with the fewest layers to save so far."""
        able = self._able((lo, hi))
        agent = min(able, key=lambda a: sum(y - x for (x, y), _ in self._saves.get(a, ())))
        every = self._every(self._periodic.save_every)
        save = Instruction(Op.SAVE, 0, lo, hi, every=every)
        task = self._builder.add(agent, save, self._versions.dependencies(agent, (lo, hi)))
        self._saves.setdefault(agent, []).append(((lo, hi), task))
        return task
