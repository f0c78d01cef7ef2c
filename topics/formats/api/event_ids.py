"""Event ids of a watch stream (§7.2): base64url without padding.

    topics                 an id holds
    1 to MAP_MAX_TOPICS    a JSON map from topic to cursor, if the id has ID_MAX_BYTES at most
    more, or longer ids    the decimal number of a checkpoint that the session keeps

Clients send ids back in a field of a request, and proxies refuse long ones.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection

import msgspec

MAP_MAX_TOPICS = 64
ID_MAX_BYTES = 4096
CHECKPOINT_MAX_DIGITS = 19
MEMBER_BYTES = 24  # of a map, besides the topic: two quotes, colon, comma, 20 digits

_map = msgspec.json.Decoder(dict[str, int])


def always_maps(topics: Collection[str]) -> bool:
    """Whether the cursors of these topics fit an id whatever they are."""
    size = sum([len(topic) + MEMBER_BYTES for topic in topics])
    return len(topics) <= MAP_MAX_TOPICS and size * 4 // 3 < ID_MAX_BYTES


def encode_id(cursors: dict[str, int], checkpoint: int) -> bytes:
    """The id of cursors that stand so at this checkpoint."""
    if len(cursors) <= MAP_MAX_TOPICS:
        packed = _base64(msgspec.json.encode(cursors))
        if len(packed) <= ID_MAX_BYTES:
            return packed
    return _base64(b"%d" % checkpoint)


def decode_id(text: bytes) -> dict[str, int] | int:
    """A map, or the number of a checkpoint; an empty map for what is neither."""
    try:
        packed = base64.b64decode(text + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
        is_number = packed.isdigit() and len(packed) <= CHECKPOINT_MAX_DIGITS
        return int(packed) if is_number else _map.decode(packed)
    except (binascii.Error, msgspec.MsgspecError, ValueError):
        return {}


def _base64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")
