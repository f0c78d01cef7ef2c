"""Time as the rules are given it: no rule reads a clock."""

from __future__ import annotations

from typing import NamedTuple


class Now(NamedTuple):
    """Both clocks in milliseconds. ``ts``: wall clock, since 1970. ``ms``: monotonic clock, for
    durations.
    """

    ts: int
    ms: int
