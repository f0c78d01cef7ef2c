"""Loop lag: how long an event waits until the loop looks at it, measured over every pass.

    after_io_wait --a pass: all tasks that can run--> before_io_wait --the loop waits--> ...

What comes while the loop waits is seen at once; what comes during a pass of ``d`` seconds waits for
the rest of it, ``d / 2`` on average. Over a window the mean wait of an event is therefore the sum
of ``d * d / 2`` divided by the length of the window. A single long pass weighs in one window only.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import trio


class LoopLag(trio.abc.Instrument):
    """Measures the loop that it is added to as an instrument."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._woke = self._since = clock()
        self._busy = self._squares = 0.0

    @property
    def pass_began(self) -> float:
        """When the pass under way began."""
        return self._woke

    def after_io_wait(self, timeout: float) -> None:  # noqa: ARG002 - the instrument's signature
        """A pass begins."""
        self._woke = self._clock()

    def before_io_wait(self, timeout: float) -> None:  # noqa: ARG002 - the instrument's signature
        """A pass ends."""
        spent = self._clock() - self._woke
        self._busy += spent
        self._squares += spent * spent

    def take_ms(self) -> float:
        """The mean wait since the last call, in milliseconds; the pass under way counts later."""
        now = self._clock()
        # The first of the passes may have begun before the window.
        window = max(now - self._since, self._busy)
        mean_s = self._squares / (2 * window) if window else 0.0
        self._since, self._busy, self._squares = now, 0.0, 0.0
        return mean_s * 1000
