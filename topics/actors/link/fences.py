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
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fences:
    """``full``: no load or store passes it, in either direction. ``order``: the same, or None where
    the machine never lets a store pass an earlier store, nor a load or a store an earlier load.
    """

    full: Callable[[], None]
    order: Callable[[], None] | None


def load_fences(machine: str | None = None) -> Fences:
    """The fences of this machine. Raises RuntimeError where there are none: rings would lose data
    there.

    On x86-64 a lock that is taken and given back costs 70 ns, a call through ctypes 270 ns; both
    are full fences there. Elsewhere a lock is only acquire and release, which is not enough.
    """
    if (machine or platform.machine()) in ("x86_64", "AMD64"):
        return Fences(full=_lock_fence(), order=None)
    fence = _library_fence("libatomic.so.1")
    return Fences(full=fence, order=fence)


def _lock_fence() -> Callable[[], None]:
    lock = threading.Lock()
    acquire, release = lock.acquire, lock.release

    def full_fence() -> None:
        acquire()
        release()

    return full_fence


def _library_fence(library: str) -> Callable[[], None]:
    try:
        call = ctypes.CDLL(library).atomic_thread_fence
    except (OSError, AttributeError) as error:
        raise RuntimeError(
            f"no memory fence on this machine ({platform.machine()}): {library} has no"
            " atomic_thread_fence; install libatomic"
        ) from error
    call.argtypes, call.restype = [ctypes.c_int], None
    seq_cst = 5  # memory_order_seq_cst of C11

    def full_fence() -> None:
        call(seq_cst)

    return full_fence
