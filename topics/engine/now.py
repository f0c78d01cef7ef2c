"""Now: the current time, which the rules get as an argument because they never read a clock."""

from __future__ import annotations

from typing import NamedTuple


class Now(NamedTuple):
    """The time on both clocks in milliseconds.

    ``ts`` is the wall-clock time since the Unix epoch. ``ms`` is the time of the monotonic clock,
    which is used for durations.
    """

    ts: int
    ms: int
