"""What the worker does, as words in the memory that it shares with its supervisor.

The writer has some hundred nanoseconds for each instruction, so it writes numbers only. Agents are
written as hashes of their names, which both sides can compute: a list of peers would have to be
the same on both sides at all times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from hashlib import blake2b

from bamboo_agent.ipc import computed
from bamboo_agent.ipc.shared_progress import SharedProgress
from bamboo_core.model.ids import AgentId
from bamboo_core.model.items import Item, Kind
from bamboo_core.model.program import Instruction, Op
from bamboo_core.protocol.messages import ActivityKind
from bamboo_core.protocol.supervisor_io import Progressed

TIMES_MEASURED = 20
"""An instruction that takes so many times its longest time so far is overdue."""
TIMES_UNKNOWN = 10
"""So many floors is the limit of one that has never run (it may compile), that loads, builds or
copies layers, or that reads data."""
_TIMES_LOADER = 10

_READING_SHARE = 0.9  # of the limit
_KINDS = (ActivityKind.IDLE, ActivityKind.RUNNING, ActivityKind.LOADING, ActivityKind.WAITING)
_IDLE, _RUNNING, _LOADING, _WAITING = range(len(_KINDS))
_OPS = tuple(Op)
_NUMBERS = {op: number for number, op in enumerate(_OPS, start=1)}  # 0: no instruction
_OF_STORAGE = frozenset({Op.LOAD, Op.SAVE, Op.SEAL})
_NS_MEASURED = TIMES_MEASURED * 1e9
_UNSTEADY = _OF_STORAGE | {Op.INIT}  # what one of them took says little about the next
_NOBODY = AgentId("")
_NO_ITEM = (0,) * 9
_NOTHING = (0, 0, 0, 0, 0, *_NO_ITEM, 0)  # no instruction, no item, no peer
_SAMPLE = 7  # the word that has 1 + the sample that is read; the first one of an item


@lru_cache(maxsize=4096)
def hash_of(agent: AgentId) -> int:
    """A number above 0 for the agent's name; 0 for no agent."""
    return int.from_bytes(blake2b(agent.encode(), digest_size=7).digest()) + 1 if agent else 0


class ActivityWriter:
    """The worker's end. ``floor_s``: no instruction is overdue before."""

    def __init__(self, shared: SharedProgress, floor_s: float) -> None:
        self._shared = shared
        self._begin = shared.write_running
        self._floor_ns = round(floor_s * 1e9)
        self._unknown_ns = TIMES_UNKNOWN * self._floor_ns
        self._limits_ns: dict[tuple[Op, int], int] = {}  # by op and number of layers
        self._key = (Op.F, 0)  # of the newest instruction
        self._limit_ns = 0
        self._running = (0, 0, 0, 0, 0)  # its words
        self.computed = computed.Computed(shared.computed)

    @property
    def reading_limit_s(self) -> float:
        """Seconds after which a read of data ends by an error of its own, before it is overdue."""
        return _READING_SHARE * self._unknown_ns / 1e9

    def run(self, instruction: Instruction) -> None:
        """The instruction begins."""
        op, step, lo, hi, index = instruction[:5]
        self._key = key = (op, hi - lo)
        self._limit_ns = limit_ns = self._limits_ns.get(key, self._unknown_ns)
        self._running = words = (_NUMBERS[op], step, lo, hi, index)
        self._begin(_RUNNING, limit_ns, *words)

    def issue(self, instruction: Instruction) -> None:
        """Python runs the instruction, for a device that may still compute an older one."""
        op, step, lo, hi, index = instruction[:5]
        self._shared.write_issued(_NUMBERS[op], step, lo, hi, index)

    def issued(self) -> None:
        """It has run it, or has failed."""
        self._shared.write_issued(0, 0, 0, 0, 0)

    def read_data(self, sample: int | None = None) -> None:
        """The instruction reads samples, from a storage of the user's that may be slow. sample:
        which one; None: it makes a micro-batch of them."""
        words = (*self._running, *_sample_words(sample))
        self._shared.write_doing(_LOADING, self._unknown_ns, *words)

    def go_on(self) -> None:
        """It has read them."""
        self._begin(_RUNNING, self._limit_ns, *self._running)

    def ran(self, elapsed_s: float) -> None:
        """It has ended. The longest time that one of its kind took bounds the next ones.

        elapsed_s: without the time in which it read data.
        """
        if elapsed_s * _NS_MEASURED > self._limit_ns or self._key not in self._limits_ns:
            least_ns = self._unknown_ns if self._key[0] in _UNSTEADY else self._floor_ns
            self._limits_ns[self._key] = max(least_ns, round(elapsed_s * _NS_MEASURED))

    def wait_for(self, instruction: Instruction, peer: AgentId) -> None:
        """The instruction waits for an item of ``peer``; empty: of nobody that is known."""
        op, step, lo, hi, index = instruction[:5]
        item = _NO_ITEM if instruction.item is None else _item_words(instruction.item)
        self._shared.write_doing(
            _WAITING, 0, _NUMBERS[op], step, lo, hi, index, *item, hash_of(peer)
        )

    def wait_for_operator(self) -> None:
        """The next program has not come yet."""
        self._shared.write_doing(_WAITING, 0, *_NOTHING)

    def wait_for_storage(self, instruction: Instruction | None) -> None:
        """The instruction cannot begin before the storage thread has done something; None: the
        program has ended but for files. A slow storage is no fault of the agent, so without limit.
        """
        if instruction is None:
            self._shared.write_doing(_LOADING, 0, *_NOTHING)
            return
        op, step, lo, hi, index = instruction[:5]
        self._begin(_LOADING, 0, _NUMBERS[op], step, lo, hi, index)

    def wait_for_data(self, instruction: Instruction, sample: int | None = None) -> None:
        """The instruction cannot begin before its samples are here. The worker itself ends what
        hangs over them, so the limit is far. sample: a slow one, if it is known."""
        op, step, lo, hi, index = instruction[:5]
        words = (_NUMBERS[op], step, lo, hi, index, *_sample_words(sample))
        self._shared.write_doing(_LOADING, _TIMES_LOADER * self._unknown_ns, *words)

    def rest(self) -> None:
        """There is no program, or it has ended."""
        self._shared.write_doing(_IDLE, 0, *_NOTHING)


def pair_writer(shared: SharedProgress) -> Callable[[int, AgentId, int, bool], None]:
    """A function for the transport's thread: place of a link, its peer (empty: the place is free),
    bytes that have come over it, and whether a part of a frame is here."""

    def write(place: int, peer: AgentId, received: int, is_coming: bool) -> None:
        shared.write_pair(place, hash_of(peer), received, is_coming=is_coming)

    return write


def read(shared: SharedProgress, names: Mapping[int, AgentId]) -> Progressed:
    """The supervisor's end. ``names``: agents by :func:`hash_of`."""
    words = shared.doing
    peer = names.get(words[-1]) if words[0] == _WAITING else None
    pair = shared.pair(words[-1]) if peer is not None else (0, False)
    received, is_coming = pair or (None, False)
    return Progressed(
        shared.progress,
        shared.step,
        shared.longest_s,
        kind=_KINDS[words[0]],
        limit_s=words[1] / 1e9,
        instruction=_text(words, peer, names),
        peer=peer,
        traffic=shared.traffic,
        received=received,
        is_coming=is_coming,
    )


def read_place(shared: SharedProgress) -> str:
    """Where the worker is in the user's code: the instruction that Python runs, with the sample, or
    the layer, if it is known; in the set-up a factory or a layer. Empty: it waits, perhaps for
    another process that reads samples."""
    words, issued = shared.doing, shared.issued
    kind, limit_ns = words[:2]
    found = computed.read(shared.computed) if kind != _LOADING else ""
    if issued[0]:
        words = (kind, limit_ns, *issued, *words[7:])
    elif kind != _RUNNING:
        return found
    text = _text(words, None, {})
    return f"{text}, {found}" if found else text


def _text(words: tuple[int, ...], peer: AgentId | None, names: Mapping[int, AgentId]) -> str:
    """The instruction as :mod:`bamboo_core.model.program` prints it, and what it waits for on this
    node; empty if there is none."""
    kind, limit_ns, op, step, lo, hi, index = words[:7]
    item = _item(words[7:16], names) if kind == _WAITING else None
    text = ""
    if op:
        text = str(Instruction(_OPS[op - 1], step, lo, hi, index, item, peer or _NOBODY))
    if kind != _LOADING:
        return text
    if not limit_ns:
        return f"{text or 'the end'} waits for storage"
    if not words[_SAMPLE]:
        return f"{text} reads data"
    field = "spec.data.validation" if _OPS[op - 1] is Op.V else "spec.data"
    return f"{text} reads sample {words[_SAMPLE] - 1} of {field}"


def _item(words: tuple[int, ...], names: Mapping[int, AgentId]) -> Item | None:
    kind, step, lo, hi, index, part, agent, leaves, slices = words
    if not kind:
        return None
    return Item(
        kind=Kind(kind),
        step=step,
        lo=lo,
        hi=hi,
        index=index,
        part=part,
        agent=names.get(agent, _NOBODY),
        leaves=leaves,
        slices=slices,
    )


def _sample_words(sample: int | None) -> tuple[int, ...]:
    """In the place of an item and a peer."""
    return (0 if sample is None else sample + 1, *_NO_ITEM[1:], 0)


def _item_words(item: Item) -> tuple[int, ...]:
    return (*item[:6], hash_of(item.agent), item.leaves, item.slices)
