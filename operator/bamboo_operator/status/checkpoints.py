"""The checkpoints in the status: the newest one and the best one."""

from __future__ import annotations

from typing import Any

from bamboo_core.api.progress import BestCheckpoint

Object = dict[str, Any]


def newest(step: int, path: str, caveat: str) -> Object | None:
    """``status.lastCheckpoint``, without its time. step: -1 means that there is none."""
    if step < 0:
        return None
    return {"step": step, "path": path, **({"caveat": caveat} if caveat else {})}


def write_best(best: BestCheckpoint | None) -> Object | None:
    """``status.best``."""
    if best is None:
        return None
    return {**best._asdict(), "value": f"{best.value:.6g}"}


def read_best(status: Object) -> BestCheckpoint | None:
    """Inverse of :func:`write_best`."""
    found = status.get("best")
    if not found:
        return None
    return BestCheckpoint(**{**found, "value": float(found["value"])})
