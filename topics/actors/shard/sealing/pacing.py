"""Sealing pace: when sealing starts, and how long it pauses between two steps (decision 0022).

A full log file is sealed at once, unless the log grows fast: a burst of a few files has the disk
and the interpreter to itself, and is sealed when it is over. Each step of the work is followed by a
pause, in which the loop serves requests and the log's threads get the interpreter:

    backlog (full log files)           pause after a step
    up to BACKLOG_NORMAL_FILES         PAUSE_RATIO times as long as the step, PAUSE_MAX_S at most
    in between                         shorter with each file
    BACKLOG_MAX_FILES and more         none; others run between two steps all the same

Pacing decides about time only: what is sealed, and in which order, never depends on it.
"""

from __future__ import annotations

import trio

from topics.config import TUNING

ROUND_INTERVAL_S = 0.1  # between two looks for full log files
RETRY_INTERVAL_S = 5.0  # after an error, and between checkpoints that only reclaim room
BURST_MIN_BYTES = 512 << 10  # growth of the log between two looks that makes it busy
BACKLOG_NORMAL_FILES = 2
BACKLOG_MAX_FILES = 8
PAUSE_RATIO = 6.0
PAUSE_MAX_S = 0.010


class BurstDetector:
    """Whether the log has grown so much since the last look that its load may be a short burst."""

    def __init__(self, lsn: int) -> None:
        self._lsn = lsn
        self._is_busy = False

    def observe(self, lsn: int) -> None:
        """Note the log's end, once for each look."""
        self._is_busy = lsn - self._lsn >= BURST_MIN_BYTES
        self._lsn = lsn

    def is_burst(self, backlog_files: int) -> bool:
        """Whether sealing should wait for the end of a burst. Never once a normal backlog waits."""
        return self._is_busy and backlog_files < BACKLOG_NORMAL_FILES


def pause_after(step_s: float, backlog_files: int) -> float:
    """Seconds that follow a step of ``step_s`` seconds."""
    if not TUNING.sealing_pauses:
        return 0.0
    share = (BACKLOG_MAX_FILES - backlog_files) / (BACKLOG_MAX_FILES - BACKLOG_NORMAL_FILES)
    return min(max(min(share, 1.0), 0.0) * PAUSE_RATIO * step_s, PAUSE_MAX_S)


async def pause(step_s: float, backlog_files: int) -> None:
    """Let others run after a step of ``step_s`` seconds."""
    pause_s = pause_after(step_s, backlog_files)
    if pause_s:
        await trio.sleep(pause_s)
    else:
        await trio.lowlevel.checkpoint()
