"""``disable_backpressure`` (§0.6): whether the body of a write opts out of 429. Nothing else of it
is decoded.
"""

from __future__ import annotations

import msgspec

from topics.formats.buffers import Buffer

# One of them is there, however the name is spelled: its letters can be escaped as \uXXXX only.
_SIGNS = (b"backpressure", b"\\u")


class _OptOut(msgspec.Struct):
    disable_backpressure: bool = False


_opt_out = msgspec.json.Decoder(_OptOut)


def opts_out(body: Buffer) -> bool:
    """Whether the write may not be refused under pressure. A body that cannot be read does not opt
    out: it is refused in one way or the other.
    """
    text = bytes(body)
    if not any(sign in text for sign in _SIGNS):
        return False
    try:
        return _opt_out.decode(text).disable_backpressure
    except (UnicodeDecodeError, msgspec.MsgspecError, RecursionError):
        return False
