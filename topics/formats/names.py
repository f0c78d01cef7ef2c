"""Names of topics and routers, and the mapping of names to shards."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import crc32c

NAME_MAX: Final = 255  # characters
TOPIC_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}", re.ASCII)
ROUTER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:>-]{0,254}", re.ASCII)


def valid_topic_name(name: str) -> bool:
    """Return whether a topic may have this name (§1.1): 1 to 255 ASCII characters, starting with
    a letter or digit.
    """
    return TOPIC_NAME.fullmatch(name) is not None


def valid_router_name(name: str) -> bool:
    """Return whether a router may have this name (§6), which may also contain ``>``: ``a->b``."""
    return ROUTER_NAME.fullmatch(name) is not None


def shard_of(name: str, shards: int) -> int:
    """Return the number of the shard that owns the topic. The number is the same in every process
    and never changes within a data directory.

    The shard is computed from the name, so a front needs no directory of topics and no round trip
    before the first append. Consistent hashing would have no advantage, because the number of
    shards is fixed.
    """
    return crc32c.crc32c(name.encode()) % shards


def covered(name: str, prefixes: Sequence[str] | None) -> bool:
    """Return whether an API key with these prefixes may access ``name`` (§0.2). None allows every
    name.
    """
    return prefixes is None or name.startswith(tuple(prefixes))
