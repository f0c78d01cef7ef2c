"""Interpreter switch interval: how soon the log's threads get the interpreter from the shard's loop
(decision 0022).

Each thread that wants the interpreter waits for one interval before the running thread must give
it up. The log's threads need it after each call, for moments only; Python's own interval is 5 ms.
"""

from __future__ import annotations

import sys

from topics.config import TUNING

SHARD_S = 0.0005


def favour_log_threads() -> None:
    """Set the interval of a shard's process, once at its start."""
    if TUNING.switch_interval:
        sys.setswitchinterval(SHARD_S)
