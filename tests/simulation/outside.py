"""What the server finds outside of itself, made of a seed: time, chance, descriptors of the kernel.

It is put in place of the real thing once, before anything of the server runs; the world that runs
at the moment is what it asks.
"""

from __future__ import annotations

import os
import random
import secrets
import sys
import time
from typing import Any, Final

from trio._core import _run as trio_run

BEGAN_S: Final = 1_000_000.0  # of the monotonic clock: the machine has been up for a while
BEGAN_WALL_S: Final = 1_800_000_000.0
TICK_S: Final = 1e-6  # what a look at the clock takes, so that no loop waits for ever for time


class Time:
    """A clock that moves when all tasks wait, and by a tick when it is looked at; and the wall
    clock, which jumps.
    """

    def __init__(self) -> None:
        self.now, self.wall_ahead_s = BEGAN_S, BEGAN_WALL_S - BEGAN_S

    def monotonic(self) -> float:
        """Seconds; each call is a little later than the one before."""
        self.now += TICK_S
        return self.now

    def wall(self) -> float:
        """Seconds since 1970."""
        return self.monotonic() + self.wall_ahead_s

    def current(self) -> float:
        """Monotonic seconds, without a tick."""
        return self.now


# Beats of a server that nothing promises, in seconds: here they are slower, or an hour in which
# nothing happens would cost as much as one in which all does. What is noticed when one is missing
# is noticed later in the same measure.
BEATS: Final = {
    "topics.actors.link.beat": {"BEAT_S": 15.0},
    "topics.actors.link.pulse": {"STALLED_S": 60.0, "LOOK_MAX_S": 30.0},
    "topics.actors.shard.gauges": {"DISK_S": 600.0},
    "topics.actors.shard.room": {"RETRY_MIN_S": 5.0},
    "topics.actors.shard.sealing.sealing": {"ROUND_INTERVAL_S": 10.0},
    "topics.front.pressure.governor": {"TICK_S": 20.0},
    "topics.process.health": {
        "TICK_S": 20.0,
        "STALLED_S": 60.0,
        "FIRST_SIGN_S": 120.0,
        "KILL_AFTER_S": 180.0,
    },
    "topics.process.supervisor": {"TICK_S": 20.0},
}


class _Now:
    """The time of the world that runs."""

    time: Time


def install(seed: int) -> Time:
    """Time and chance of a new world."""
    _Now.time = own = Time()
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
    dice = random.Random(f"chance {seed}")
    replaced: list[tuple[Any, str, Any]] = [
        (os, "getpid", lambda: 1000),
        (os, "urandom", dice.randbytes),
        (secrets, "token_bytes", dice.randbytes),
        (secrets, "token_hex", lambda length: dice.randbytes(length).hex()),
        (secrets, "randbits", dice.getrandbits),
        (trio_run, "_ALLOW_DETERMINISTIC_SCHEDULING", True),
    ]
    for owner, name, function in replaced:
        setattr(owner, name, function)
    random.seed(seed)
    trio_run._r.seed(seed)
    return own


def slow_down() -> None:
    """Make the beats slower, in the modules that are loaded."""
    for owner, beats in BEATS.items():
        for name, slower in beats.items():
            promised = getattr(sys.modules[owner], name)
            for key, module in sys.modules.copy().items():
                if key.startswith("topics.") and getattr(module, name, None) is promised:
                    setattr(module, name, slower)


_REAL_GMTIME: Final = time.gmtime
