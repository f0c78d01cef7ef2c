"""Imports of libraries that import more than this program uses."""

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
    """Import without the collector, and exempt all that is there from later collections: one in a
    forked child would touch, and thereby copy, pages that it shares.
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
    """Import as if these packages were missing. They may be imported afterwards."""
    with _substituted(dict.fromkeys(names)):
        yield


@contextmanager
def lazily(*names: str) -> Iterator[None]:
    """Import, but of these modules only what uses something in them while it is imported."""
    with _substituted({name: _LazyModule(name) for name in names}):
        yield


class _LazyModule(ModuleType):
    """Stands for a module that is imported when something in it is used."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


@contextmanager
def _substituted(modules: Mapping[str, ModuleType | None]) -> Iterator[None]:
    missing = {name: module for name, module in modules.items() if name not in sys.modules}
    sys.modules.update(missing)  # type: ignore[arg-type]  # None is how Python marks a missing one
    try:
        yield
    finally:
        for name, module in missing.items():
            if sys.modules.get(name, ...) is module:
                del sys.modules[name]


def load_compiled(package: str, name: str) -> None:
    """Let the compiled module ``name`` of a package stand for the package, of which nothing else is
    imported.
    """
    whole = None if package in sys.modules else PathFinder.find_spec(package)
    if whole is not None:
        places = whole.submodule_search_locations
        spec = PathFinder.find_spec(f"{package}.{name}", places)
        if spec is not None and spec.loader is not None:
            sys.modules[package] = module = module_from_spec(spec)
            spec.loader.exec_module(module)
