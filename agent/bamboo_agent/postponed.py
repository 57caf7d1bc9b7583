"""torch._dynamo, loaded when something is compiled, and not because an optimizer mentions it.

Every torch optimizer imports it for two markers: this function shall not be compiled, here a graph
ends. While nothing is compiled both say nothing, but the import is almost half of an agent's start
(some 900 modules). The markers are answered here; whatever else is asked of the module loads it, as
:class:`importlib.util.LazyLoader` would, which the first marker would set off.
"""

from __future__ import annotations

import importlib.util
import sys
from threading import RLock
from types import ModuleType
from typing import Any

import torch

_NAME = "torch._dynamo"
_LOCK = RLock()


class _Postponed(ModuleType):
    """The module's place in sys.modules; becomes the module itself."""

    @staticmethod
    def graph_break(*_: Any, **__: Any) -> None:
        """Nothing is being traced."""

    @staticmethod
    def disable(function: Any, *_: Any, **__: Any) -> Any:
        """It is not compiled anyway. (Called with a function by torch's own decorators; what user
        code calls is ``torch.compiler.disable``, which asks for more and so loads the module.)"""
        return function

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":  # for that a submodule's import asks
            raise AttributeError(name)
        with _LOCK:
            if self.__class__ is _Postponed:
                self._load()
        return getattr(self, name)

    def _load(self) -> None:
        spec = self.__spec__
        assert spec is not None
        assert spec.loader is not None
        self.__class__ = ModuleType  # type: ignore[assignment]
        self.__path__ = list(spec.submodule_search_locations or ())
        spec.loader.exec_module(self)


def postpone() -> None:
    """Call before the first optimizer is made. Does nothing where the module is there already."""
    spec = importlib.util.find_spec(_NAME) if _NAME not in sys.modules else None
    if spec is None:
        return
    module = importlib.util.module_from_spec(spec)
    del module.__path__
    module.__class__ = _Postponed
    sys.modules[_NAME] = module
    torch._dynamo = module  # the import system sets it after a load only
