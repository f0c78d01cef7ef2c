"""Event ids of a watch stream (§7.2): base64url without padding.

    topics                 an id holds
    1 to MAP_MAX_TOPICS    a JSON map from topic to cursor, if the id has ID_MAX_BYTES at most
    more, or longer ids    the decimal number of a checkpoint that the session keeps

Clients send ids back in a field of a request, and proxies refuse long ones.
"""

from __future__ import annotations

import base64
import binascii

import msgspec

MAP_MAX_TOPICS = 64
ID_MAX_BYTES = 4096
CHECKPOINT_MAX_DIGITS = 19

_map = msgspec.json.Decoder(dict[str, int])


def encode_id(cursors: dict[str, int]) -> bytes | None:
    """The id that is a map; None when it must be a number."""
    if len(cursors) > MAP_MAX_TOPICS:
        return None
    packed = _base64(msgspec.json.encode(cursors))
    return packed if len(packed) <= ID_MAX_BYTES else None


def encode_checkpoint(number: int) -> bytes:
    """The id that is the number of a checkpoint."""
    return _base64(b"%d" % number)


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
