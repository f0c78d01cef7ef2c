"""Memory fences: order the loads and stores of two processes on shared memory.

Python has no memory model. An access to one element of a view cast to "Q" is one aligned 8-byte
load or store. Only the fences in this module define the order of such accesses. ``load_fences`` is
the only code that depends on the machine (`decisions/0001`). A server must not start on a machine
without fences, because rings would lose wake-ups.
"""

from __future__ import annotations

import ctypes
import platform
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Fences:
    """The fences of a machine.

    ``with full: pass`` is a full fence: no load or store is reordered across it, in either
    direction. ``order()`` is the same fence. ``order`` is None on machines such as x86-64, where
    only a load can be reordered, and only before an earlier store.
    """

    full: AbstractContextManager[Any]
    order: Callable[[], None] | None


def load_fences(machine: str | None = None) -> Fences:
    """Return the fences of this machine.

    Raises RuntimeError if the machine has no fences.

    On x86-64, acquiring and releasing a lock takes 70 ns, and a call through ctypes takes 270 ns.
    Both are full fences there. On other machines a lock has only acquire and release semantics,
    which are not sufficient.
    """
    if (machine or platform.machine()) in ("x86_64", "AMD64"):
        return Fences(full=threading.Lock(), order=None)
    fence = _LibraryFence("libatomic.so.1")
    return Fences(full=fence, order=fence.__enter__)


class _LibraryFence:
    """A sequentially consistent C11 fence in a shared library, called through ctypes."""

    def __init__(self, library: str) -> None:
        try:
            self._call = ctypes.CDLL(library).atomic_thread_fence
        except (OSError, AttributeError) as error:
            raise RuntimeError(
                f"no memory fence on this machine ({platform.machine()}): {library} has no"
                " atomic_thread_fence; install libatomic"
            ) from error
        self._call.argtypes, self._call.restype = [ctypes.c_int], None

    def __enter__(self) -> None:
        seq_cst = 5  # memory_order_seq_cst
        self._call(seq_cst)

    def __exit__(self, *_: object) -> None:
        """Do nothing: the fence is executed on entry."""
