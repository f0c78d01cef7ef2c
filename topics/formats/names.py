"""Names of topics and routers, and the shard that a name belongs to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import crc32c

NAME_MAX: Final = 255  # characters
TOPIC_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}", re.ASCII)
ROUTER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:>-]{0,254}", re.ASCII)


def valid_topic_name(name: str) -> bool:
    """Whether ``name`` may name a topic (§1.1): 1 to 255 ASCII characters, the first a letter or
    digit.
    """
    return TOPIC_NAME.fullmatch(name) is not None


def valid_router_name(name: str) -> bool:
    """Whether ``name`` may name a router (§6): as that of a topic, with ``>`` for ``a->b``."""
    return ROUTER_NAME.fullmatch(name) is not None


def shard_of(name: str, shards: int) -> int:
    """The shard that owns the topic, the same in every process and for the life of a data
    directory.

    It follows from the name, so no front needs a directory of ids and a round trip before the first
    append. A ring of consistent hashes would move nothing: the number of shards is fixed.
    """
    return crc32c.crc32c(name.encode()) % shards


def covered(name: str, prefixes: Sequence[str] | None) -> bool:
    """Whether a key with this allowlist may touch ``name`` (§0.2); None allows every name."""
    return prefixes is None or name.startswith(tuple(prefixes))
