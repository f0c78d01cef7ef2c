"""Arena reservations: shared memory for long request bodies, and who makes room when it is full.

A body that arrives is the holder of its block. While there is no room, the slowest holder is told
to give up; a body keeps its memory as long as it brings a tenth of it a second.
"""

from __future__ import annotations

from typing import Final

from topics.actors.link.arena import ArenaBlock, Holder
from topics.actors.link.link import Link
from topics.errors import Throttled

TURNOVER_MAX_S: Final = 10.0  # a body that takes longer to bring what it holds may have to go


def reserve(link: Link, length: int, holder: Holder | None) -> ArenaBlock | None:
    """A block that ``holder`` fills; None when there is no room. Without a holder it is filled and
    sent at once.
    """
    block = link.reserve(length)
    if block is not None:
        block.holder = holder
    return block


def make_room(link: Link, holder: Holder, now: float) -> bool:
    """Tell the slowest body to give up, unless it is ``holder``'s or none is slow.

    Returns whether one was told: it gives up when other tasks run.
    """
    holders = {block.holder: None for block in link.filling if block.holder is not None}
    slowest = max(holders, key=lambda one: one.turnover_s(now), default=holder)
    bound = max(TURNOVER_MAX_S, holder.turnover_s(now))
    if slowest is holder or slowest.turnover_s(now) < bound:
        return False
    reason = "no memory for a large body that arrives this slowly"
    slowest.give_up(Throttled(reason, retry_after_ms=1000))
    return True


def fail_holders(link: Link, failure: Exception) -> None:
    """The shard is gone: tell everybody who fills a block."""
    for block in link.filling:
        if block.holder is not None:
            block.holder.give_up(failure)
