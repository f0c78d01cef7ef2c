"""Memory fences: what keeps the loads and stores of two processes in order.

Python has no memory model. One element of a view cast to "Q" is one aligned 8-byte load or store;
everything else about their order comes from here. ``load_fences`` is the one place that knows the
machine (`decisions/0001`). A server must not start where there are no fences: rings would lose
wake-ups.
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
    """``with full: pass``: no load or store passes it, in either direction. ``order()``: the same,
    or None where the machine never lets a store pass an earlier store, nor a load or a store an
    earlier load.
    """

    full: AbstractContextManager[Any]
    order: Callable[[], None] | None


def load_fences(machine: str | None = None) -> Fences:
    """The fences of this machine. Raises RuntimeError where there are none: rings would lose data
    there.

    On x86-64 a lock that is taken and given back costs 70 ns, a call through ctypes 270 ns; both
    are full fences there. Elsewhere a lock is only acquire and release, which is not enough.
    """
    if (machine or platform.machine()) in ("x86_64", "AMD64"):
        return Fences(full=threading.Lock(), order=None)
    fence = _LibraryFence("libatomic.so.1")
    return Fences(full=fence, order=fence.__enter__)


class _LibraryFence:
    """The fence of C11."""

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
        """The fence stands before what is inside."""
