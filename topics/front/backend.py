"""What the front asks of the shards, under the names of modules that have not changed yet."""

from __future__ import annotations

from topics.actors.link.arena import ArenaBlock as BodyBlock
from topics.actors.rpc.session import Attachment as Body
from topics.actors.rpc.session import Reply
from topics.actors.shard_client.readiness import unready
from topics.actors.shard_client.shards import Shards as Backend

__all__ = ["Backend", "Body", "BodyBlock", "Reply", "listed", "unready"]


def listed(prefixes: tuple[str, ...] | None) -> list[str] | None:
    """A key's prefixes as the calls table has them."""
    return None if prefixes is None else list(prefixes)
