"""Interpreter switch interval: how soon the log's threads get the interpreter from the shard's loop
(decision 0022).

Each thread that wants the interpreter waits for one interval before the running thread must give
it up. The log's threads need it after each call, for moments only; Python's own interval is 5 ms.

    at all times       SHARD_S
    during sealing     SEALING_S: the loop is busy, and each of its calls that releases the
                       interpreter for a moment starts the wait of the other threads anew
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from topics.config import TUNING

SHARD_S = 0.0005
SEALING_S = 0.0001


def favour_log_threads() -> None:
    """Set the interval of a shard's process, once at its start."""
    if TUNING.switch_interval:
        sys.setswitchinterval(SHARD_S)


@contextlib.contextmanager
def sealing_interval() -> Iterator[None]:
    """Shorten the interval while the loop is busy with sealing; never lengthen it."""
    usual = sys.getswitchinterval()
    if TUNING.switch_interval:
        sys.setswitchinterval(min(SEALING_S, usual))
    try:
        yield
    finally:
        sys.setswitchinterval(usual)
