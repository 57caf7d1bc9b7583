"""Claims and nodes for the tests of the line."""

from __future__ import annotations

from bamboo_core.admission.claims import Claim, NodeRoom, Shape
from bamboo_core.admission.line import Decision
from bamboo_core.api.spec import Adjacency
from bamboo_core.controller.turn import Word
from bamboo_core.controller.view import JobView

GPU = "nvidia.com/gpu"


def node_room(zone: str, free: int, whole: int | None = None) -> NodeRoom:
    return NodeRoom(zone, {GPU: free}, {GPU: free if whole is None else whole})


def shape(*names: str, gpus: int = 1, wish: str = "") -> Shape:
    return Shape({GPU: gpus}, names, frozenset(names), frozenset({wish}))


def a_claim(
    name: str,
    shape_: Shape,
    *,
    grid: tuple[int, int, int] = (1, 1, 2),
    priority: int = 0,
    age: float = 0.0,
    namespace: str = "ns",
    held: dict[str, int] | None = None,
    training: bool = False,
    adjacency: Adjacency = Adjacency.CLUSTER,
    closed: frozenset[str] = frozenset(),
    refused: bool = False,
    assured: int | None = None,
) -> Claim:
    """grid: pipelines at least, pipelines wanted, stages. assured: None: it has always had this
    minimum."""
    job = JobView(namespace, name, f"uid-{name}", 1, -age)
    least, most, stages = grid
    return Claim(
        job, priority, stages, least, most, adjacency, shape_, held or {}, training,
        least * stages if assured is None else assured, closed, refused,
    )  # fmt: skip


def words(decision: Decision) -> dict[str, Word]:
    return {uid.removeprefix("uid-"): turn.word for uid, turn in decision.turns.items()}
