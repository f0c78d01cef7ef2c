"""Decoding: strict JSON bodies to typed values. Unknown fields are ignored, payloads stay raw.

The decoder checks grammar and types. It does not check UTF-8 within raw values, nor the depth of
nesting: that is done here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import msgspec

from topics.errors import InvalidRequest
from topics.formats.api.refusals import refusal
from topics.formats.api.topic_config import TopicConfigPatch
from topics.formats.buffers import Buffer

Body = TypeVar("Body", bound=msgspec.Struct)

_patch = msgspec.json.Decoder(TopicConfigPatch)
_BAD_BODY = (UnicodeDecodeError, msgspec.MsgspecError, RecursionError)


@contextmanager
def refusing_bad_bodies() -> Iterator[None]:
    """Turn what decoders raise into `InvalidRequest`."""
    try:
        yield
    except _BAD_BODY as error:
        raise _refusal(error) from error


def _refusal(error: Exception, body: Buffer = b"") -> InvalidRequest:
    if isinstance(error, UnicodeDecodeError):
        at = error.start
        return InvalidRequest(f"the body is not valid UTF-8: byte {at}", offset=at)
    if isinstance(error, msgspec.MsgspecError):
        return refusal(error, body)
    return InvalidRequest("the body is nested too deeply")


def decode(parse: Callable[[Buffer], Body], body: Buffer) -> Body:
    """A body as ``parse`` gives it, valid UTF-8 throughout. Raises `InvalidRequest`."""
    try:  # not refusing_bad_bodies(): it would cost as much again
        # The decoder does not look into raw values: one bad byte would spoil every reader's JSON.
        if not (isinstance(body, bytes) and body.isascii()):
            str(body, "utf-8")
        return parse(body)
    except _BAD_BODY as error:
        raise _refusal(error, body) from error


def decode_config(body: Buffer) -> TopicConfigPatch:
    """Body of a topic PUT; an empty body names no field."""
    return decode(_patch.decode, body or b"{}")
