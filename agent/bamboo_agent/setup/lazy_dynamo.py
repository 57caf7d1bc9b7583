"""Imports torch._dynamo when something is compiled, not when an optimizer mentions it.

Every torch optimizer imports it for two markers: do not compile this function, and break the graph
here. They have no effect while nothing is compiled, but importing hundreds of modules is a large
part of an agent's start-up. A placeholder implements the markers. Any other attribute, or the
import of a submodule, replaces it with the real module.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch

_NAME = "torch._dynamo"


class _Disabled:
    """A function that is not compiled: from the import of the module on it is marked so."""

    def __init__(self, function: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        self._function, self._arguments, self._options = function, arguments, options
        self._marked: Any = None

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        if self._marked is None:
            module = sys.modules[_NAME]
            if isinstance(module, _Placeholder):
                return self._function(*arguments, **options)
            disable = module.disable
            marked = disable(self._function, *self._arguments, wrapping=False, **self._options)
            self._marked = marked
        return self._marked(*arguments, **options)


class _Placeholder(ModuleType):
    """Stands in sys.modules until the module is imported. Then it forwards attributes to it."""

    @staticmethod
    def graph_break(*_: Any, **__: Any) -> None:
        """Nothing is being traced."""

    @staticmethod
    def disable(
        function: Any = None, *arguments: Any, wrapping: bool = True, **options: Any
    ) -> Any:
        """Torch's own marker (``wrapping=False``) has no effect until something is compiled, and
        torch keeps what it gets here for ever. Other uses have an effect."""
        if function is not None and not wrapping:
            return _Disabled(function, arguments, options)
        return _load().disable(function, *arguments, wrapping=wrapping, **options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(_load(), name)


class _Submodules(MetaPathFinder):
    """Loads the package before any of its submodules, as the import system would."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        is_ours = fullname.startswith(f"{_NAME}.")
        if not is_ours or not isinstance(sys.modules.get(_NAME), _Placeholder):
            return None
        _load()
        found = sys.modules.pop(fullname, None)  # otherwise it would be executed again
        return None if found is None else ModuleSpec(fullname, _Found(found))


class _Found(Loader):
    """Returns a submodule that the package has already imported."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        with contextlib.suppress(AttributeError):  # torch's config modules guard their names
            module.__spec__ = self._spec


def _load() -> ModuleType:
    """The module. If the import fails, the next use raises the same error."""
    placeholder = sys.modules.get(_NAME)
    if not isinstance(placeholder, _Placeholder):
        return importlib.import_module(_NAME)
    del sys.modules[_NAME]
    try:
        return importlib.import_module(_NAME)
    except BaseException:
        sys.modules[_NAME] = placeholder
        raise


def defer_import() -> None:
    """Call before creating the first optimizer. No-op if the module is already imported."""
    spec = importlib.util.find_spec(_NAME) if _NAME not in sys.modules else None
    if spec is None:
        return
    module = importlib.util.module_from_spec(spec)
    module.__class__ = _Placeholder
    sys.modules[_NAME] = module
    torch._dynamo = module  # the import system does this only after an import
    sys.meta_path.insert(0, _Submodules())
