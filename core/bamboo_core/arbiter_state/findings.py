"""Checkpoints that cannot be read for now, and those that an agent has read and found wrong.

A checkpoint is bad once two agents on different nodes have found it wrong, or the only node twice,
some time apart: one agent's storage or memory may be at fault. It is, if that node finds it wrong
twice and an agent on another node has read all of it and found it right. What cannot be reached is
never bad. An agent of an earlier version says the same of it as of a wrong file, so its word
confirms nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.protocol.messages import BadCheckpoint

AGAIN_S = 30.0
"""Between two looks of one node at a checkpoint that it has found wrong; attentive time."""

Mark = tuple[int, int]
"""Attempt and step of a checkpoint."""


@dataclass
class Finding:
    """A checkpoint that was found wrong."""

    text: str  # of the newest word, with its agent
    again_at: float  # nobody is told to load it before
    # node -> its first word: when it came, and for which order it was read
    words: dict[str, tuple[float, Fence]] = field(default_factory=dict)
    again: dict[str, AgentId] = field(default_factory=dict)  # node -> who has found it wrong again
    right: set[str] = field(default_factory=set)  # nodes from which all of it was read

    def is_settled(
        self, agent: AgentId, node: str, fence: Fence | None, now: float, *, is_alone: bool
    ) -> bool:
        """Note the word of an agent on a node; whether the checkpoint is bad. is_alone: no other
        node has an agent that could look. A word of an earlier version of the agent has no fence,
        and does not count; one that is repeated in a new session has the same."""
        if fence is None:
            return False
        at, first = self.words.setdefault(node, (now, fence))
        if len(self.words) > 1:
            return True
        if fence == first or now < at + AGAIN_S:
            return False
        self.again[node] = agent
        return is_alone and not self.right


@dataclass
class Findings:
    """All findings since the newest commit."""

    found: dict[Mark, Finding] = field(default_factory=dict)
    unreachable: dict[AgentId, str] = field(default_factory=dict)  # what each cannot read, and why
    refuted_agents: set[AgentId] = field(default_factory=set)  # their words do not count any more

    def hear(
        self, agent: AgentId, node: str, bad: BadCheckpoint, now: float, *, is_alone: bool
    ) -> bool:
        """An agent has found a checkpoint wrong; whether it is bad now."""
        mark = bad.attempt, bad.step
        finding = self.found.setdefault(mark, Finding("", -inf))
        finding.text, finding.again_at = f"{agent}: {bad.message}", now + AGAIN_S
        is_bad = finding.is_settled(agent, node, bad.fence, now, is_alone=is_alone)
        if is_bad:
            del self.found[mark]
        return is_bad

    def hear_right(self, node: str, mark: Mark) -> None:
        """An agent on this node has read all of a checkpoint that was found wrong: it is right."""
        finding = self.found.get(mark)
        if finding is not None and node not in finding.words:
            finding.right.add(node)

    def refuted(self, mark: Mark) -> list[AgentId]:
        """Agents whose reading is at fault. If there are any, the finding is void."""
        finding = self.found.get(mark)
        if finding is None or not (finding.right and finding.again):
            return []
        agents = sorted(self.found.pop(mark).again.values())
        self.refuted_agents.update(agents)
        return agents

    def settle(self) -> None:
        """A step is committed, so all that was needed was read."""
        self.found.clear()
        self.unreachable.clear()
