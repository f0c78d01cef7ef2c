"""Lean imports: the start of a server leaves out what libraries import and run but never use here.

    crc32c      reads its own version through importlib.metadata, and with it email and zipfile
    structlog   imports asyncio for methods that nobody calls
    trio        runs ldconfig in a process of its own, to find libpthread

Each library ends in the same state as otherwise, but for ``crc32c.__version__``, which is empty.
When a new version of a library does these things no more, only the saving is lost.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

METADATA = "importlib.metadata"
LIBPTHREAD = "libpthread.so.0"  # since glibc 2.34 an empty one, which leads to libc


@contextmanager
def lean_imports() -> Iterator[None]:
    """Imports within are lean. Only for a process without threads."""
    _load_later("asyncio")
    stands_in = METADATA not in sys.modules
    if stands_in:
        sys.modules[METADATA] = _without_metadata()
    find_library, ctypes.util.find_library = ctypes.util.find_library, _find_library
    try:
        yield
    finally:
        ctypes.util.find_library = find_library
        if stands_in:
            del sys.modules[METADATA]


class _Later(ModuleType):
    """A package that is loaded when one of its names or submodules is first looked up.

    Not `importlib.util.LazyLoader`: in Python 3.11 it loads at a second ``import``, too.
    """

    def __getattr__(self, name: str) -> object:
        spec = self.__spec__
        assert spec is not None
        assert spec.loader is not None, "it was found by one"
        self.__class__ = ModuleType  # type: ignore[assignment]
        self.__path__ = spec.submodule_search_locations or []
        spec.loader.exec_module(self)
        return getattr(self, name)


def _load_later(name: str) -> None:
    if name in sys.modules or (spec := importlib.util.find_spec(name)) is None:
        return
    module = _Later(name)
    module.__spec__, module.__loader__ = spec, spec.loader
    module.__package__, module.__file__ = name, spec.origin
    sys.modules[name] = module


def _without_metadata() -> ModuleType:
    module = ModuleType(METADATA)
    module.version = lambda _name: ""  # type: ignore[attr-defined]
    return module


_find_library_slowly = ctypes.util.find_library


def _find_library(name: str) -> str | None:
    """As `ctypes.util.find_library`, without the programs that it starts."""
    if name == "pthread":
        try:
            ctypes.CDLL(LIBPTHREAD)
        except OSError:
            return _find_library_slowly(name)  # not glibc
        return LIBPTHREAD
    return _find_library_slowly(name)
