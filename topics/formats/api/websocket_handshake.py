"""WebSocket handshake: the key of an upgrade request and its answer (RFC 6455 §4.2)."""

from __future__ import annotations

import base64
import hashlib
import re
from typing import Final

VERSION: Final = b"13"
_ACCEPT_SUFFIX: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_KEY: Final = re.compile(rb"[A-Za-z0-9+/]{22}==")


def is_key(key: bytes) -> bool:
    """Whether a Sec-WebSocket-Key is 16 bytes of base64 (§4.2.1)."""
    return _KEY.fullmatch(key) is not None


def accept_key(key: bytes) -> bytes:
    """The Sec-WebSocket-Accept that answers a Sec-WebSocket-Key (§4.2.2)."""
    return base64.b64encode(hashlib.sha1(key + _ACCEPT_SUFFIX, usedforsecurity=False).digest())
