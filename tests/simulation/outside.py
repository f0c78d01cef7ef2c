"""Replacements for time, randomness and kernel descriptors, which are derived from a seed.

They are installed once, before any code of the server runs. They delegate to the world that is
currently running.
"""

from __future__ import annotations

import os
import random
import secrets
import sys
import time
from typing import Any, Final

from trio._core import _run as trio_run

BEGAN_S: Final = 1_000_000.0  # at the start of a run: the machine has been running for some time
BEGAN_WALL_S: Final = 1_800_000_000.0
TICK_S: Final = 1e-6  # a clock read advances the time by this, so that no busy loop waits forever


class Time:
    """A clock that advances when all tasks wait, and by one tick for each read. The wall clock can
    also jump.
    """

    def __init__(self) -> None:
        self.now, self.wall_ahead_s = BEGAN_S, BEGAN_WALL_S - BEGAN_S

    def monotonic(self) -> float:
        """Return seconds. Each call returns a slightly later time."""
        self.now += TICK_S
        return self.now

    def wall(self) -> float:
        """Return the seconds since 1970."""
        return self.monotonic() + self.wall_ahead_s

    def current(self) -> float:
        """Return monotonic seconds without advancing the clock."""
        return self.now


# Intervals, in seconds, of periodic tasks that the contract does not specify. They are longer here,
# because otherwise an idle simulated hour would cost as much as a busy one. Timeouts that depend on
# these tasks are extended by the same factor.
SLOW_INTERVALS: Final = {
    "topics.actors.link.tick": {"TICK_INTERVAL_S": 15.0},
    "topics.actors.link.liveness": {"STALLED_S": 60.0, "STEP_MAX_S": 30.0},
    "topics.actors.shard.gauges": {"DISK_S": 600.0},
    "topics.actors.shard.disk_space": {"RETRY_MIN_S": 5.0},
    "topics.actors.shard.sealing.sealing": {"ROUND_INTERVAL_S": 10.0},
    "topics.front.pressure.governor": {"TICK_S": 20.0},
    "topics.process.health": {
        "TICK_S": 20.0,
        "STALLED_S": 60.0,
        "FIRST_HEARTBEAT_S": 120.0,
        "KILL_AFTER_S": 180.0,
    },
    "topics.process.supervisor": {"TICK_S": 20.0},
}


class _Now:
    """The time of the running world."""

    time: Time


def install(seed: int) -> Time:
    """Install time and randomness of a new world."""
    _Now.time = clock = Time()
    names: dict[str, Any] = {
        "monotonic": lambda: _Now.time.monotonic(),
        "perf_counter": lambda: _Now.time.monotonic(),
        "time": lambda: _Now.time.wall(),
        "monotonic_ns": lambda: int(_Now.time.monotonic() * 1e9),
        "perf_counter_ns": lambda: int(_Now.time.monotonic() * 1e9),
        "time_ns": lambda: int(_Now.time.wall() * 1e9),
    }
    real_gmtime = _REAL_GMTIME
    names["gmtime"] = lambda at=None: real_gmtime(_Now.time.wall() if at is None else at)
    for name, function in names.items():
        setattr(time, name, function)
    rng = random.Random(f"chance {seed}")
    replaced: list[tuple[Any, str, Any]] = [
        (os, "getpid", lambda: 1000),
        (os, "urandom", rng.randbytes),
        (secrets, "token_bytes", rng.randbytes),
        (secrets, "token_hex", lambda length: rng.randbytes(length).hex()),
        (secrets, "randbits", rng.getrandbits),
        (trio_run, "_ALLOW_DETERMINISTIC_SCHEDULING", True),
    ]
    for owner, name, function in replaced:
        setattr(owner, name, function)
    random.seed(seed)
    trio_run._r.seed(seed)
    return clock


def slow_down() -> None:
    """Lengthen these intervals in the modules that are loaded."""
    for owner, intervals in SLOW_INTERVALS.items():
        for name, longer in intervals.items():
            original = getattr(sys.modules[owner], name)
            for key, module in sys.modules.copy().items():
                if key.startswith("topics.") and getattr(module, name, None) is original:
                    setattr(module, name, longer)


_REAL_GMTIME: Final = time.gmtime
