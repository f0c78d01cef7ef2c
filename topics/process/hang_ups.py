"""Hang-ups (SIGHUP) at the start: kept until the supervisor listens to them. Imports next to
nothing, so that it comes first.
"""

from __future__ import annotations

import signal


def hold_hang_ups() -> None:
    """Keep a hang-up for later, also where it was ignored (``nohup``): it does not end this
    process.
    """
    # Blocked first: a blocked hang-up does not end the process, which is the default action.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
