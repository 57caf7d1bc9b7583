"""Which part of the user's code the worker runs: a layer, the loss, or a factory in its set-up.

If the user's code ends the process there, its supervisor reads it in the memory that both share. A
worker writes it at each call of a layer, so the texts are made only once.
"""

from __future__ import annotations

from bamboo_agent.ipc.shared_progress import COMPUTED_BYTES
from bamboo_core.api import texts


class Computed:
    """memory: of :attr:`SharedProgress.computed`; None: nobody reads it."""

    def __init__(self, memory: memoryview | None = None) -> None:
        self._memory = memoryview(bytearray(COMPUTED_BYTES)) if memory is None else memory
        self._layers: dict[int, bytes] = {}
        self._loss = _text("the loss")

    def begin(self, words: str) -> None:
        """The worker begins with this."""
        self._memory[:] = _text(words)

    def begin_layer(self, index: int, layer: object) -> None:
        """The call of this layer begins. index: in the model."""
        text = self._layers.get(index)
        if text is None:
            text = self._layers[index] = _text(f"layer {index} ({type(layer).__name__})")
        self._memory[:] = text

    def begin_loss(self) -> None:
        """The call of the loss begins."""
        self._memory[:] = self._loss

    def end(self) -> None:
        """It has ended."""
        self._memory[0] = 0


def read(memory: memoryview) -> str:
    """Return the part that is computed; empty: none."""
    return bytes(memory).partition(b"\0")[0].decode(errors="replace")


def _text(words: str) -> bytes:
    return texts.cut(words, COMPUTED_BYTES - 1).encode().ljust(COMPUTED_BYTES, b"\0")
