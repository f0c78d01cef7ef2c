"""Delay: how long a message that comes now will wait, told to the front by a word on the board.

It is the sum of two waits: that for a turn, while more waits than a turn takes; and that for the
log, beyond the two writes and syncs that a group waits for at most while the disk is as usual. Each
front weighs it against its own load (pressure, §11).

A turn looks again when the last look is `LOOK_MS` old, and not every request costs a look. While
there is a delay, a deadline ends what no turn would end.
"""

from __future__ import annotations

from typing import Final

import trio

from topics.actors.link.pulse import Pulse
from topics.actors.shard.context import ShardContext
from topics.actors.shard.service import Service

LOOK_MS: Final = 20


class Delay(Service):
    """Keeps ``ShardWords.delay_ms``."""

    def __init__(self, context: ShardContext) -> None:
        self._context = context
        self._log = Pulse()
        self._looked_ms = 0
        self._is_queued = False

    def on_turn(self) -> None:
        """Look, if it is time."""
        if self._context.now.ms - self._looked_ms >= LOOK_MS:
            self.look()

    def look(self) -> None:
        """Put the delay of now on the board."""
        context = self._context
        self._looked_ms = context.now.ms
        delay_ms = int(1000 * (context.inbox.wait_s + self._log_wait_s(context.now.ms / 1000)))
        if delay_ms != context.words.delay_ms:
            context.words.delay_ms = delay_ms
        if delay_ms and not self._is_queued:
            self._is_queued = True
            context.deadlines.call_at(trio.current_time() + LOOK_MS / 1000, self._look_again)

    def _look_again(self) -> None:
        self._is_queued = False
        self.look()

    def _log_wait_s(self, now: float) -> float:
        commits = self._context.commits
        if not len(commits) or self._context.room.broken is not None:
            self._log.look(now, now)
            return 0.0
        return max(0.0, self._log.look(commits.oldest, now) - 2 * commits.usual_s)
