"""Space waits: appends that wait until the space that a backup has occupied is free.

    no space for the log, while a backup keeps files
        -> the pin breaks; lost appends and new appends wait
        -> the files are deleted (`Sealing.break_pin_and_wait`), the log gets its next file
        -> the appends are handled in the order in which they began to wait

An append waits at most once. If the disk is still full afterwards, or no backup keeps files, the
append is refused immediately.
"""

from __future__ import annotations

from collections.abc import Callable

from topics.actors.shard.context import ShardContext
from topics.actors.shard.sealing.sealing import Sealing


class SpaceWaits:
    """The waiting appends of a shard. ``is_active``: appends wait, so later appends also wait."""

    def __init__(self, context: ShardContext, sealing: Sealing) -> None:
        self._context, self._sealing = context, sealing
        self._calls: list[Callable[[], object]] = []
        self.is_active = False

    @property
    def may_free_space(self) -> bool:
        """Whether a backup keeps files, or files that it kept are being deleted."""
        return self._sealing.keeps_files

    def defer(self, call: Callable[[], object]) -> None:
        """Call ``call`` in an iteration when the files have been deleted, or could not be."""
        self._calls.append(call)
        if not self.is_active:
            self.is_active = True
            self._context.start(self._free)

    async def _free(self) -> None:
        await self._sealing.break_pin_and_wait()
        if self._context.wal.lacks_space:
            await self._context.disk_space.find_space()
        with self._context.iteration():
            self.is_active = False
            calls, self._calls = self._calls, []
            for call in calls:
                call()
