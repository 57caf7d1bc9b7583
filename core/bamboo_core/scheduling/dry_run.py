"""The dry run: executes a set of programs on item names alone, before agents get them.

It shares the executor's rules (bamboo_core.model.rules), so a program that passes here runs there.
It is stricter in two points: an item counts as received only after its RECV, and messages of one
lane between two agents must be received in the order in which they are sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from heapq import heappop, heappush
from math import inf

from bamboo_core.model.ids import AgentId
from bamboo_core.model.items import BULK, Item, Kind
from bamboo_core.model.numerics import BatchShape
from bamboo_core.model.program import COMPUTE, Instruction, Messages, Op, Program, parts_of
from bamboo_core.model.rules import needs, prepare, rule
from bamboo_core.protocol.execution.lane import Lane
from bamboo_core.scheduling.costs import Costs
from bamboo_core.scheduling.dry_run_state import Blocked as Blocked
from bamboo_core.scheduling.dry_run_state import DryRunAgent, DryRunStock
from bamboo_core.scheduling.dry_run_state import DryRunResult as DryRunResult
from bamboo_core.scheduling.dry_run_state import Message as Message
from bamboo_core.scheduling.dry_run_state import Span as Span

_UNLIMITED = 1 << 30
_SAME = 1e-9  # sums of equal times differ by rounding errors


def dry_run(
    programs: Mapping[AgentId, Program],
    *,
    batch: BatchShape,
    layers: int,
    holdings: Mapping[AgentId, Collection[Item]] | None = None,
    costs: Costs | None = None,
    periodic: bool = True,
    lanes: Mapping[AgentId, Program] | None = None,
    lane_limit: int = _UNLIMITED,
    bytes_of: Callable[[Item], int] | None = None,
    wire: Callable[[Item], float] | None = None,
    measures: bool = True,
) -> DryRunResult:
    """Execute the programs of one step.

    layers: of the whole model; holdings: items (including VER, with relative steps) that agents
    have at the start; costs: by default F = I = W = 1 and B = 2 per layer; periodic: whether
    instructions with ``every`` run in this step; lanes: what agents run while they wait for items;
    lane_limit: most forwards computed ahead that an agent keeps; bytes_of: size of an item, VER: of
    a layer's state, which is counted with it; wire: time that an item takes an interface, which
    sends, and receives, one item after the other (default: none); measures: whether times and peaks
    are wanted. Faults do not depend on them without lanes, since agents wait only for messages.

    On the wire small items have a lane of their own, and do not wait for large ones.
    """
    if wire is not None:
        programs = _one_by_one(programs)
    costs = costs or Costs.even(layers)
    measures = measures or bool(lanes)
    run = _Run(programs, batch, layers, holdings or {}, costs, periodic, bytes_of, measures)
    run.wire = wire
    run.give_lanes(lanes or {}, lane_limit)
    run.run()
    return run.report()


def _one_by_one(programs: Mapping[AgentId, Program]) -> dict[AgentId, Program]:
    """Without packed programs, where the times of single messages matter."""
    return {agent: tuple(program) for agent, program in programs.items()}


def stopped(
    programs: Mapping[AgentId, Program],
    *,
    until: float,
    batch: BatchShape,
    layers: int,
    holdings: Mapping[AgentId, Collection[Item]],
    costs: Costs,
    lanes: Mapping[AgentId, Program] | None = None,
    lane_limit: int = _UNLIMITED,
    wire: Callable[[Item], float] | None = None,
) -> tuple[dict[AgentId, set[Item]], float]:
    """All that agents hold (including VER) if all stop at ``until``, and when the last one stops.

    A running computation finishes; messages in transit are lost. The rest is as in :func:`dry_run`.
    """
    run = _Run(_one_by_one(programs), batch, layers, holdings, costs, periodic=True)
    run.until, run.wire = until, wire
    run.give_lanes(lanes or {}, lane_limit)
    run.run()
    return {a.name: a.items(until) for a in run.agents.values()}, max(
        [until, *(a.spans[-1][2] for a in run.agents.values() if a.spans)]
    )


_SEND, _RECV, _VOTE, _UPDATE = Op.SEND, Op.RECV, Op.VOTE, Op.UPDATE
_SAVE, _SLICE = Op.SAVE, Op.SLICE
_VERSIONED = frozenset({Op.INIT, Op.LOAD, Op.UPDATE})  # these make or consume VER
_VER, _PIECE, _RED = Kind.VER, Kind.PIECE, Kind.RED
_NOTHING = (Item.commit(0), 0.0)


class _Run(DryRunStock):
    """State of all agents, and the messages between them."""

    def __init__(
        self,
        programs: Mapping[AgentId, Program],
        batch: BatchShape,
        layers: int,
        holdings: Mapping[AgentId, Collection[Item]],
        costs: Costs,
        periodic: bool,
        bytes_of: Callable[[Item], int] | None = None,
        measures: bool = True,
    ) -> None:
        super().__init__(bytes_of, measures)
        self.batch, self.layers, self.periodic = batch, layers, periodic
        self.durations, self.latency = costs.durations(), costs.latency
        self.agents = {a: DryRunAgent(a, p, parts_of(p)) for a, p in programs.items()}
        for name, items in holdings.items():
            if name in self.agents:
                for item in items:
                    self.gain(self.agents[name], item, False)
        self.until = inf
        self.wire: Callable[[Item], float] | None = None
        # Items on their way to an interface, by when their first bytes are there: that time, number
        # of the item, its time, the item, sender, receiver.
        self.moving: list[tuple[float, int, float, Item, AgentId, DryRunAgent]] = []
        self.numbered = 0
        self.sets: dict[int, tuple[tuple[Item, ...], frozenset[Item]]] = {}  # by id of the tuple
        self.asleep: dict[AgentId, list[DryRunAgent]] = {}  # sender -> agents that wait for an item
        self.strays: list[Message] = []
        self.disorder: list[Message] = []
        self.todo = deque(self.agents.values())

    def give_lanes(self, lanes: Mapping[AgentId, Program], limit: int) -> None:
        """Give agents the work that they run while they wait."""
        for name, lane in lanes.items():
            self._give_lane(self.agents[name], lane, limit)

    def _give_lane(self, agent: DryRunAgent, lane: Program, limit: int) -> None:
        """Let the agent compute ahead in waits before its last computation, as executors do."""
        tasks = [(at, x) for at, x in enumerate(agent.parts) if not isinstance(x, Messages)]
        computing = [at for at, x in tasks if x.op in COMPUTE and (self.periodic or x.every <= 1)]
        if not computing:
            return
        agent.lane, agent.last = Lane.of(prepare(lane, 0, self.batch, self.layers)), computing[-1]
        wanted = (item for _, x in tasks for item in needs(x, self.batch, self.layers))
        agent.lane_limit = limit
        agent.continued = frozenset(item for item in wanted if item.kind is Kind.PREFIX)

    def run(self) -> None:
        """Run until no agent can continue.

        All that can run comes first: those who wait then send nothing before the next item comes.
        """
        while self.todo or self.moving:
            if self.todo:
                self._advance(self.todo.popleft())
            else:
                self._come()

    def _advance(self, agent: DryRunAgent) -> None:
        """Run the agent's program to the end, or to an instruction that lacks an item.

        Nine of ten instructions of a large grid are messages, so the usual cases are here: an item
        that was just sent to another peer, and one that has arrived and is the next in its inbox.
        """
        program, until, measures = agent.parts, self.until, self.measures
        skips, agents, name, wire = not self.periodic, self.agents, agent.name, self.wire
        held, clock = agent.held, agent.clock
        inboxes, large = agent.inbox, agent.bulk
        sent: Item | None = None  # since the last computation, which may consume it
        message: tuple[Item, float] = _NOTHING  # with ``sent``
        for at in range(agent.at, len(program)):
            instruction = program[at]
            if isinstance(instruction, Messages):
                agent.at, sent = at, None
                if not self._exchange(agent, instruction):
                    return
                clock = agent.clock
                continue
            op, item, peer = instruction[0], instruction[5], instruction[6]
            if clock >= until:
                agent.at = at
                return
            if skips and instruction[9] > 1:
                continue
            if op is _RECV:
                assert item is not None
                if inbox := (large if item[0] in BULK else inboxes).get(peer):
                    first, arrival = inbox[0]
                    is_here = first is item and arrival <= clock
                    if is_here and item[0] is not _VER:
                        del inbox[0]
                        if item[0] is _RED or not measures:
                            held.setdefault(item, True)
                        elif item[0] is _PIECE:
                            self.gain_slices(agent, (item,), True)
                        else:
                            self.gain(agent, item, True)
                        continue
                sent = None  # another version may replace it
                done = self._receive(agent, item, peer)
                clock = agent.clock
            elif op is _SEND:
                assert item is not None
                done = item is sent or self._has(agent, item)
                if done:
                    if item is not sent:
                        sent, message = item, (item, agent.clock + self.latency)
                    target = agents.get(peer)
                    if target is None:
                        self.strays.append(Message(item, name, peer))
                        continue
                    if agent.posted:
                        self._unpost(agent, target)
                    if wire is None:
                        self._put(target, name, message)
                    else:
                        self._send(agent, target, item, wire(item))
            else:
                sent = None
                done = self._compute(agent, instruction, at)
                clock = agent.clock
            if not done:
                agent.at = at
                return
        agent.at = len(program)

    def _exchange(self, agent: DryRunAgent, messages: Messages) -> bool:
        """Do the same as :meth:`_advance` for each message, as far as possible. False: it stops."""
        run = self._send_all if messages.op is _SEND else self._receive_all
        agent.within = run(agent, messages, agent.within)
        if agent.within < len(messages.items):
            return False
        agent.within = 0
        return True

    def _send_all(self, agent: DryRunAgent, messages: Messages, begin: int) -> int:
        items, peers, held = messages.items, messages.peers, agent.held
        end, sent = len(items), None
        for at in range(begin, end):
            item = items[at]
            if item is not sent and item not in held and not self._has(agent, item):
                end = at
                break
            sent = item
        while begin < end:
            left = dict(zip(peers[begin:end], items[begin:end], strict=True))
            if len(left) < end - begin:  # several to one peer
                left = {}
                for at in range(begin, end):
                    if peers[at] in left:
                        break
                    left[peers[at]] = items[at]
            begin += len(left)
            self._post(agent, left)
        return end

    def _post(self, agent: DryRunAgent, left: dict[AgentId, Item]) -> None:
        """Send one item to each of these peers."""
        for peer in [peer for peer in left if peer not in self.agents]:
            self.strays.append(Message(left.pop(peer), agent.name, peer))
        agent.posted.append((agent.clock + self.latency, left))
        waiting = self.asleep.pop(agent.name, [])
        for target in waiting:
            wake = target.wake
            if wake is None or wake[0] != agent.name:
                continue
            if left.get(target.name) == wake[1]:
                target.wake = None
                self.todo.append(target)
            else:
                self.asleep.setdefault(agent.name, []).append(target)

    def _receive_all(self, agent: DryRunAgent, messages: Messages, begin: int) -> int:
        items, peers = messages.items, messages.peers
        agents, name, inboxes, clock = self.agents, agent.name, agent.bulk, agent.clock
        come: list[Item] = []
        at = begin
        for at in range(begin, len(items)):
            item, peer = items[at], peers[at]
            found = None
            if not inboxes.get(peer) and peer in agents:
                for arrival, left in agents[peer].posted:
                    found = left.pop(name, None)
                    if found is None:
                        continue
                    if found is not item or arrival > clock:
                        left[name] = found
                        found = None
                    break
            if found is not None:
                come.append(item)
                continue
            if self._receive(agent, item, peer):
                clock = agent.clock
            else:
                break
        else:
            at += 1
        self.gain_all(agent, come)
        return at

    def _unpost(self, sender: DryRunAgent, target: DryRunAgent) -> None:
        """Move what is posted to the target to its large items, where all that comes later follows
        it."""
        for arrival, left in sender.posted:
            item = left.pop(target.name, None)
            if item is not None:
                target.bulk.setdefault(sender.name, []).append((item, arrival))

    def _has(self, agent: DryRunAgent, item: Item) -> bool:
        """Whether the agent can send the item; if not, it stops for it."""
        if item in agent.held or (item[0] is _VER and agent.versions.get(item[2]) == item[1]):
            return True
        agent.lacks = item
        return False

    def _receive(self, agent: DryRunAgent, item: Item, peer: AgentId) -> bool:
        if peer in self.agents:
            self._unpost(self.agents[peer], agent)
        inbox = agent.lane_of(item).get(peer)
        if not inbox:
            self._sleep(agent, item, peer)
            return False
        first, arrival = inbox[0]
        if first is not item and first != item:
            if not self._in_disorder(agent, peer, item):
                self._sleep(agent, item, peer)
                return False
            arrival = inbox[0][1]
        if arrival >= self.until:
            agent.lacks = item
            return False
        del inbox[0]
        if arrival > agent.clock:
            if agent.lane.forwards:
                self._compute_ahead(agent, arrival)
            agent.clock = max(agent.clock, arrival)
        self.gain(agent, item, True)
        return True

    def _sleep(self, agent: DryRunAgent, item: Item, peer: AgentId) -> None:
        """Stop until the peer sends the item."""
        agent.lacks, agent.wake = item, (peer, item)
        self.asleep.setdefault(peer, []).append(agent)

    def _send(self, agent: DryRunAgent, target: DryRunAgent, item: Item, time: float) -> None:
        """Begin to send the item as soon as the agent's interface is free."""
        begin = agent.sending.take(agent.clock, time, is_bulk=item[0] in BULK)
        self.numbered += 1
        move = begin + self.latency, self.numbered, time, item, agent.name, target
        heappush(self.moving, move)

    def _come(self) -> None:
        """The first bytes of the next item come. Its receiver takes it after all of its lane whose
        first bytes came earlier."""
        now, _, time, item, source, target = heappop(self.moving)
        begin = target.receiving.take(now, time, is_bulk=item[0] in BULK)
        self._put(target, source, (item, begin + time))

    def _put(self, target: DryRunAgent, source: AgentId, message: tuple[Item, float]) -> None:
        """A message is on its way, and it is known when it will be here."""
        box = target.bulk if message[0][0] in BULK else target.inbox
        box.setdefault(source, []).append(message)
        wake = target.wake
        if wake is not None and wake[0] == source and wake[1] == message[0]:
            target.wake = None
            self.todo.append(target)

    def _compute_ahead(self, agent: DryRunAgent, until: float) -> None:
        """Run slices that end before ``until``, as an executor does that knows its waits."""
        while True:
            limit, needed = agent.lane_limit, agent.continued
            found = agent.lane.next(lambda task: agent.may(task), agent.held, limit, needed)
            if found is None:
                return
            task, rest, dropped = found
            time = self.durations.of(task.instruction)
            if agent.clock + time > until + _SAME:
                return
            agent.lane = rest
            agent.clock += time
            agent.ahead_s += time
            for item in (*dropped, *task.gone):
                self.lose(agent, item)
            for item in task.items_made:
                self.gain(agent, item, False)

    def _in_disorder(self, agent: DryRunAgent, peer: AgentId, item: Item) -> bool:
        """Whether the item has been sent after others; if so, move it to the front."""
        inbox = agent.lane_of(item)[peer]
        place = next((i for i, (x, _) in enumerate(inbox) if x == item), None)
        if place is None:
            return False
        self.disorder.append(Message(item, peer, agent.name))
        found = inbox[place]
        del inbox[place]
        inbox.insert(0, found)
        return True

    def _compute(self, agent: DryRunAgent, instruction: Instruction, at: int) -> bool:
        """Run anything but SEND and RECV. False if an item is missing, which means a deadlock."""
        held, versions = agent.held, agent.versions
        needed, consumed, released, made = rule(instruction, self.batch, self.layers)
        op = instruction[0]
        if op is _VOTE or op is _UPDATE:
            needed = self._missing(needed, held)
        for item in needed:
            is_here = versions.get(item[2]) == item[1] if item[0] is _VER else item in held
            if not is_here:
                agent.lacks = item
                return False
        if op in COMPUTE and self.measures:
            begin = agent.clock
            agent.clock += self.durations.of(instruction)
            agent.spans.append((at, begin, agent.clock))
            if at == agent.last:
                agent.lane = Lane()
        for item in released:
            if held.get(item):
                self.lose(agent, item)
        if self.measures or op in _VERSIONED:
            for item in consumed:
                self.lose(agent, item)
            if op is _SLICE:
                self.gain_slices(agent, made, False)
            else:
                for item in made:
                    self.gain(agent, item, False)
        else:
            for item in consumed:
                held.pop(item, None)
            for item in made:
                held.setdefault(item, False)
        if op is _VOTE or op is _SAVE:
            self._finish(agent, instruction)
        return True

    def _missing(self, needed: tuple[Item, ...], held: dict[Item, bool]) -> tuple[Item, ...]:
        """Those that are not held, among them all VER.

        In a large grid many agents need the same hundred slices. A set knows their hashes.
        """
        found = self.sets.get(id(needed))
        if found is None:
            found = self.sets[id(needed)] = needed, frozenset(needed)
        return tuple(sorted(found[1].difference(held)))

    def _finish(self, agent: DryRunAgent, instruction: Instruction) -> None:
        """Add what the executor adds by itself: the vote, and records of files."""
        step = instruction.step
        if instruction.op is _VOTE:
            self.gain(agent, Item.vote(step, agent.name), False)
        for layer in range(instruction.lo, instruction.hi):
            self.gain(agent, Item.file(step, layer), False)

    def report(self) -> DryRunResult:
        return self.result(self.agents.values(), self.strays, self.disorder)
