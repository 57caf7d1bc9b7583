"""Messages in flight between agents and operators, and broken links.

A message is (from, to, content). Between agents the content is a tuple (Transmit, payload), and any
order is possible. A session with an operator is an ordered stream; so are writes of durable facts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from bamboo_core.model.ids import AgentId, Fence

OPERATOR, STORE, WATCH = AgentId(""), AgentId("store"), AgentId("watch")
PLANNER = AgentId("planner")
"""Endpoints that are not agents. In cut links, ``OPERATOR`` stands for the operators."""

TRICKLE_S = 0.5
"""Between two bytes over a link that trickles."""
KEEP_ALIVE_S = 15.0  # after it, both ends of a broken session see that

_OLD = "~"

_NEVER = Fence(-1)
_UNORDERED = frozenset({WATCH, PLANNER})

Message = tuple[AgentId, AgentId, Any]
Link = tuple[AgentId, AgentId]


class Network:
    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.cut: set[Link] = set()  # broken directed links
        self.operators: set[AgentId] = {OPERATOR}  # the running ones
        self.frozen: set[AgentId] = set()
        self.held: list[Message] = []  # from and to frozen agents, and what waits to be read
        self.busy: frozenset[AgentId] = frozenset()  # operators that read nothing of agents now
        self.unread: tuple[Message, ...] = ()  # they have waited for an operator
        self.quiet: frozenset[Link] = frozenset()  # cut without a sign to the workers
        self.muted: frozenset[Link] = frozenset()  # no payload comes through, only signs of life
        self.trickling: frozenset[Link] = frozenset()  # a byte of a payload comes now and then
        self.burst_s = TRICKLE_S  # then the next byte comes
        self.crawling: list[Message] = []  # payloads on these links, for which there is no end
        # a payload was lost, a word for a busy operator has waited, a payload was slow
        self.has_muffled = self.has_waited = self.has_crawled = False
        # a worker's connection to another one -> the fence in which it broke
        self.broken: dict[Link, Fence] = {}

    def copy(self) -> Network:
        """An independent copy; messages are shared."""
        new = Network.__new__(Network)
        new.messages, new.cut = self.messages.copy(), self.cut.copy()
        new.operators = self.operators.copy()
        new.frozen, new.held = self.frozen.copy(), self.held.copy()
        new.busy, new.unread = self.busy, self.unread
        new.trickling, new.crawling = self.trickling, self.crawling.copy()
        new.burst_s = self.burst_s
        new.has_muffled, new.has_waited = self.has_muffled, self.has_waited
        new.has_crawled = self.has_crawled
        new.quiet, new.muted, new.broken = self.quiet, self.muted, self.broken.copy()
        return new

    def post(self, source: AgentId, target: AgentId, content: Any) -> None:
        """Send a message; a broken link drops it."""
        if (self.broken or self.muted or self.trickling) and type(content) is tuple:
            link = (source, target)
            self.has_muffled |= link in self.muted
            if link in self.muted or content[0].fence <= self.broken.get(link, _NEVER):
                return
            if link in self.trickling and not self._is_cut(source, target):
                self.crawling.append((source, target, content))
                self.has_crawled = True
                return
        if not self.cut or not self._is_cut(source, target):
            message = (source, target, content)
            waits = (self.frozen or self.busy) and self._waits(message)
            (self.held if waits else self.messages).append(message)

    def freeze(self, name: AgentId) -> None:
        """Freeze an agent and all messages from and to it."""
        self.frozen.add(name)
        self._part(self.held + self.messages)

    def thaw(self, name: AgentId) -> None:
        """Continue a frozen agent and its messages."""
        self.frozen.discard(name)
        self._part(self.messages + self.held)

    def stop_reading(self, operator: AgentId) -> None:
        """Let what agents send to an operator wait, while time passes for it."""
        self.busy |= {operator}
        self._part(self.held + self.messages)

    def read_again(self, operator: AgentId) -> None:
        """A busy operator reads again."""
        self.busy -= {operator}
        self._part(self.held + self.messages)

    def is_unread(self, operator: AgentId) -> bool:
        """Whether the operator has not read all that has waited for it."""
        if operator in self.busy:
            return True
        waiting = {id(m) for m in self.messages} if self.unread else set()
        self.unread = tuple(m for m in self.unread if id(m) in waiting)
        return any(m[1] == operator for m in self.unread)

    def _part(self, messages: list[Message]) -> None:
        """Split messages into held and deliverable ones."""
        free = (m for m in self.held if m[1] in self.operators and not self._waits(m))
        self.unread = (*self.unread, *free)
        self.held = [m for m in messages if self._waits(m)]
        self.has_waited |= any(m[1] in self.busy for m in self.held)
        self.messages = [m for m in messages if not self._waits(m)]

    def _waits(self, message: Message) -> bool:
        source, target, _ = message
        is_unread = target in self.busy and source not in (STORE, PLANNER, WATCH)
        return is_unread or not self.frozen.isdisjoint((source, target))

    def _keep(self, is_kept: Callable[[Message], bool]) -> None:
        self.messages = [m for m in self.messages if is_kept(m)]
        self.held = [m for m in self.held if is_kept(m)]
        self.crawling = [m for m in self.crawling if is_kept(m)]

    def _is_cut(self, source: AgentId, target: AgentId) -> bool:
        ends = (OPERATOR if x in self.operators else x for x in (_agent(source), target))
        return tuple(ends) in self.cut

    def reaches(self, name: AgentId) -> bool:
        """Whether the agent and the operators reach each other, in both directions."""
        return not self.cut or not {(name, OPERATOR), (OPERATOR, name)} & self.cut

    def is_whole(self, one: AgentId, other: AgentId) -> bool:
        """Whether two agents reach each other, in both directions."""
        return not self.cut or not {(one, other), (other, one)} & self.cut

    def break_links(self, links: Iterable[Link]) -> None:
        """Break links; messages on them are lost."""
        self.cut |= set(links)
        self._keep(lambda m: not self._is_cut(m[0], m[1]))

    def end_session(self, agent: AgentId, operator: AgentId, stream: int, kept: int) -> AgentId:
        """An agent leaves its stream; messages to it are lost, and those that it sent, except the
        first ``kept``. These still come, in any order with those of its next stream.

        Returns the name under which the stream now sends.
        """
        self._keep(lambda m: not (m[0] == operator and m[1] == agent))
        old = AgentId(f"{agent}{_OLD}{stream}")
        for name in ("messages", "held"):
            out = []
            for message in getattr(self, name):
                if message[0] == agent and message[1] == operator:
                    kept -= 1
                    if kept < 0:
                        continue
                    message = (old, operator, message[2])
                out.append(message)
            setattr(self, name, out)
        return old

    def forget(self, name: AgentId, fate: int, rng: Random) -> None:
        """Drop a dead agent's messages. fate of those that it sent: 0 delivered, 1 lost, 2 a random
        half is lost, 3 + i: number i is lost, with all later ones to the same receiver."""
        late = {id(m) for m in self.tail(name, fate - 3)} if fate >= 3 else set[int]()
        self._keep(
            lambda m: (
                m[1] != name
                and not (m[0] == name and (fate == 1 or (fate == 2 and rng.random() < 0.5)))
                and id(m) not in late
            )
        )
        self.thaw(name)

    def tail(self, name: AgentId, number: int) -> list[Message]:
        """The agent's message ``number`` in flight, if there is one, and the later ones to the same
        receiver."""
        sent = [m for m in self.messages if m[0] == name]
        return [m for m in sent[number:] if m[1] == sent[number][1]]

    def forget_operator(self, name: AgentId, *, lossy: bool, rng: Random) -> None:
        """Drop a dead operator's messages; lossy: also some of those that it sent. A write of
        facts that is on its way may still arrive."""

        def is_kept(message: Message) -> bool:
            source, target, content = message
            if source == STORE and target == name:
                return getattr(content, "is_sent", False) and rng.random() < 0.5
            return target != name and not (source == name and lossy and rng.random() < 0.5)

        self._keep(is_kept)

    def lose(self, number: int) -> None:
        """Lose one message between agents, whose link stays whole."""
        found = [m for m in self.messages if type(m[2]) is tuple]
        if found:
            lost = found[number % len(found)]
            self.messages = [m for m in self.messages if m is not lost]

    def mute(self, links: Iterable[Link]) -> None:
        """From now on no payload comes through these links."""
        self.muted |= set(links)
        self.messages = [
            m for m in self.messages if m[:2] not in self.muted or type(m[2]) is not tuple
        ]

    def trickle(self, links: Iterable[Link], burst_s: float = TRICKLE_S) -> None:
        """From now on payloads come through these links so slowly that nobody sees their end: a
        byte every ``burst_s`` seconds, over those that trickle already, too."""
        self.trickling |= set(links)
        self.burst_s = burst_s
        slow = [m for m in self.messages if m[:2] in self.trickling and type(m[2]) is tuple]
        self.messages = [m for m in self.messages if not any(m is x for x in slow)]
        self.crawling += slow
        self.has_crawled |= bool(slow)

    def flow(self) -> None:
        """No link trickles any more: what is on them comes."""
        waiting, self.crawling, self.trickling = self.crawling, [], frozenset()
        for message in waiting:
            self.post(*message)

    def crawls(self, source: AgentId, target: AgentId) -> bool:
        """Whether a payload is half-way on a link that trickles."""
        return any(m[:2] == (source, target) for m in self.crawling)

    def duplicate(self) -> None:
        """Deliver every message between agents twice."""
        self.messages += [m for m in self.messages if type(m[2]) is tuple]

    def take(self, choice: int) -> Message:
        """Remove and return the message, or the first one of its stream."""
        source, target, _ = self.messages[choice]
        if source not in _UNORDERED and (source in self.operators or target in self.operators):
            choice = next(
                i for i, m in enumerate(self.messages) if m[0] == source and m[1] == target
            )
        return self.messages.pop(choice)


def _agent(source: AgentId) -> AgentId:
    """The agent to which a stream belongs."""
    return AgentId(source.partition(_OLD)[0])


def choose(policy: str, messages: list[Message], ready: int, rng: Random) -> int:
    """The next event: the index of a message, or len(messages) + i for agent i of ready."""
    if policy == "fifo":
        return 0
    count = len(messages)
    if policy == "late" and ready:
        return count + rng.randrange(ready)
    if policy == "slow-control":
        data = [i for i, m in enumerate(messages) if type(m[2]) is tuple]
        pick = rng.randrange(len(data) + ready or 1)
        if pick < len(data):
            return data[pick]
        if ready:
            return count + pick - len(data)
    return int(rng.random() * (count + ready))
