"""Follows the logs of a job's agents: a thread for each, a bounded queue, and one reader."""

from __future__ import annotations

import heapq
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from bamboo_cli.cluster.log_lines import Line, merged, read_line, split_lines
from bamboo_cli.errors import ClusterError, CommandError, NodeSilentError, NotReadyError

MOST_FOLLOWED = 64
"""Each followed log needs a connection and a thread."""
_MOST_WAITING = 1000
_HOLD_S = 0.5
_LOOK_S = 2.0


class Logs(Protocol):
    """Where the logs are: the command's client of the API server."""

    def log(
        self, namespace: str, pod: str, *, tail: int | None, is_followed: bool = False
    ) -> Iterator[bytes]: ...


def newest(
    kube: Logs, namespace: str, pods: list[str], tail: int, say: Callable[[str], None]
) -> Iterator[Line]:
    """The newest lines of each pod, merged by time. Pods without a log are left out.

    say: is told which nodes do not answer.
    """
    logs = []
    for pod in pods:
        try:
            pieces = kube.log(namespace, pod, tail=tail)
            logs.append([read_line(pod, text) for text in split_lines(pieces)])
        except NodeSilentError as error:
            say(f"{pod} is left out, since its node does not answer: {error}")
        except NotReadyError:
            continue
    return merged(logs)


@dataclass
class Streams:
    """Lines of logs that grow, nearly in order of time: a line is held for half a second."""

    kube: Logs
    namespace: str
    find: Callable[[], tuple[list[str], bool]]  # pods to follow, and whether the job has ended
    tail: int
    now: Callable[[], float] = time.monotonic
    _lines: queue.Queue[Line | ClusterError] = field(
        default_factory=lambda: queue.Queue(_MOST_WAITING)
    )
    _threads: dict[str, threading.Thread] = field(default_factory=dict)
    # Pod -> the time of its newest line, and the number of lines of that time.
    _seen: dict[str, tuple[str, int]] = field(default_factory=dict)

    def lines(self) -> Iterator[Line]:
        """Until the job has ended and every log has been read. CommandError for too many logs."""
        held: list[tuple[Line, float]] = []
        look_at, has_ended = self.now(), False
        while True:
            if self.now() >= look_at:
                has_ended = self._look()
                look_at = self.now() + _LOOK_S
            self._take(held)
            while held and (len(held) > _MOST_WAITING or held[0][1] <= self.now()):
                yield heapq.heappop(held)[0]
            if has_ended and not self._is_reading() and self._lines.empty():
                break
        while held:
            yield heapq.heappop(held)[0]

    def _take(self, held: list[tuple[Line, float]]) -> None:
        try:
            line = self._lines.get(timeout=_HOLD_S / 5)
        except queue.Empty:
            return
        if isinstance(line, ClusterError):
            raise line
        heapq.heappush(held, (line, self.now() + _HOLD_S))

    def _look(self) -> bool:
        """Follow pods that are not followed; whether the job has ended.

        The server may close the log of an agent that goes on: then it is opened again.
        """
        pods, has_ended = self.find()
        alive = {pod for pod, thread in self._threads.items() if thread.is_alive()}
        new = [] if has_ended and self._threads else [pod for pod in pods if pod not in alive]
        if len(alive) + len(new) > MOST_FOLLOWED:
            raise CommandError(
                f"{len(alive) + len(new)} agents are too many to follow, and {MOST_FOLLOWED} is the"
                " limit: name some with --agent."
            )
        for pod in new:
            thread = threading.Thread(target=self._read, args=(pod,), daemon=True)
            self._threads[pod] = thread
            thread.start()
        return has_ended

    def _is_reading(self) -> bool:
        return any(thread.is_alive() for thread in self._threads.values())

    def _read(self, pod: str) -> None:
        """In the pod's thread. The queue is bounded, so a fast log waits for the terminal."""
        try:
            for line in self._new_lines(pod):
                self._lines.put(line)
        except NotReadyError:
            return  # the next look tries again
        except ClusterError as error:
            self._lines.put(error)
        except Exception as error:  # no thread may end unseen
            text = f"the log of {pod} cannot be read ({type(error).__name__}: {error})"
            self._lines.put(ClusterError(f"{text}; report this as a defect."))

    def _new_lines(self, pod: str) -> Iterator[Line]:
        """The lines of the pod's log that were not read before it was opened again."""
        last, again = self._seen.get(pod, ("", 0))
        pieces = self.kube.log(self.namespace, pod, tail=self.tail, is_followed=True)
        for text in split_lines(pieces):
            line = read_line(pod, text)
            if line.time and line.time < last:
                continue
            if line.time and line.time == last and again:
                again -= 1
                continue
            if line.time > last:
                last = ""  # what follows is new, whatever its time is
            newest, count = self._seen.get(pod, ("", 0))
            if line.time >= newest:
                self._seen[pod] = (line.time, count + 1 if line.time == newest else 1)
            yield line
