"""Import helpers: omit or defer library modules that a program does not use, and disable garbage
collection during imports.

Without these modules, server processes start faster and use less memory.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from types import ModuleType
from typing import Any


@contextmanager
def gc_frozen() -> Iterator[None]:
    """Disable garbage collection in the block, and exclude all existing objects from later
    collections. Otherwise, a collection in a forked child would write to pages that the child
    shares with its parent, and thereby copy them.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collects:
            gc.enable()


@contextmanager
def without_packages(*names: str) -> Iterator[None]:
    """Make imports of these packages fail in the block as if they were not installed. After the
    block they can be imported.
    """
    with _substituted(dict.fromkeys(names)):
        yield


@contextmanager
def lazily(*names: str) -> Iterator[None]:
    """Defer the imports of these modules in the block. A deferred module is imported when one of
    its attributes is used for the first time.
    """
    with _substituted({name: _LazyModule(name) for name in names}):
        yield


class _LazyModule(ModuleType):
    """A placeholder that imports its module when an attribute of the module is used."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


@contextmanager
def _substituted(modules: Mapping[str, ModuleType | None]) -> Iterator[None]:
    missing = {name: module for name, module in modules.items() if name not in sys.modules}
    sys.modules.update(missing)  # type: ignore[arg-type]  # None makes an import fail
    try:
        yield
    finally:
        for name, module in missing.items():
            if sys.modules.get(name, ...) is module:
                del sys.modules[name]


def load_compiled(package: str, name: str) -> None:
    """Import the compiled module ``name`` of a package as the package itself. The other modules of
    the package are not imported.
    """
    parent = None if package in sys.modules else PathFinder.find_spec(package)
    if parent is not None:
        locations = parent.submodule_search_locations
        spec = PathFinder.find_spec(f"{package}.{name}", locations)
        if spec is not None and spec.loader is not None:
            sys.modules[package] = module = module_from_spec(spec)
            spec.loader.exec_module(module)
